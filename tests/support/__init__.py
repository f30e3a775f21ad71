"""What tests share: where things are, readers that judge, conditions to try, twins of a table, real deployments."""
