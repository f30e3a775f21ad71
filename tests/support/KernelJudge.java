import com.fasterxml.jackson.databind.ObjectMapper;
import io.delta.kernel.DataWriteContext;
import io.delta.kernel.Operation;
import io.delta.kernel.Scan;
import io.delta.kernel.Snapshot;
import io.delta.kernel.Transaction;
import io.delta.kernel.TransactionCommitResult;
import io.delta.kernel.data.ColumnVector;
import io.delta.kernel.data.ColumnarBatch;
import io.delta.kernel.data.FilteredColumnarBatch;
import io.delta.kernel.data.Row;
import io.delta.kernel.defaults.engine.DefaultEngine;
import io.delta.kernel.defaults.internal.data.DefaultColumnarBatch;
import io.delta.kernel.defaults.internal.data.vector.DefaultGenericVector;
import io.delta.kernel.engine.Engine;
import io.delta.kernel.engine.FileReadResult;
import io.delta.kernel.expressions.Literal;
import io.delta.kernel.hook.PostCommitHook;
import io.delta.kernel.internal.InternalScanFileUtils;
import io.delta.kernel.internal.actions.AddFile;
import io.delta.kernel.internal.actions.SingleAction;
import io.delta.kernel.internal.data.ScanStateRow;
import io.delta.kernel.internal.util.Utils;
import io.delta.kernel.internal.util.VectorUtils;
import io.delta.kernel.types.MetadataColumnSpec;
import io.delta.kernel.types.StructType;
import io.delta.kernel.unitycatalog.UCCatalogManagedClient;
import io.delta.kernel.unitycatalog.UCTableIdentifier;
import io.delta.kernel.utils.CloseableIterable;
import io.delta.kernel.utils.CloseableIterator;
import io.delta.storage.commit.uccommitcoordinator.UCDeltaTokenBasedRestClient;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;

/**
 * Delta's kernel with a Unity Catalog: what it reads, appends, rewrites and publishes. A request is a line of JSON, and
 * so is its answer. Tables have the columns id, p (the partition) and v.
 */
public class KernelJudge {
    private final Engine engine = DefaultEngine.create(new Configuration());
    private final Map clients = new HashMap();

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        KernelJudge judge = new KernelJudge();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        String line;
        while ((line = requests.readLine()) != null) {
            System.out.println(json.writeValueAsString(judge.answer((Map) json.readValue(line, Map.class))));
            System.out.flush();
        }
    }

    private Map answer(Map asked) {
        Map answer = new HashMap();
        try {
            Snapshot table = load(asked);
            answer.put("version", Long.valueOf(table.getVersion()));
            String verb = (String) asked.get("do");
            if (verb.equals("read")) {
                answer.put("rows", read(table, Boolean.TRUE.equals(asked.get("tracked"))));
            } else if (verb.equals("publish")) {
                table.publish(engine);
            } else if (verb.equals("checkpoint")) {
                table.writeCheckpoint(engine);
            } else {
                TransactionCommitResult done = commit(table, asked);
                answer.put("version", Long.valueOf(done.getVersion()));
                if (Boolean.TRUE.equals(asked.get("publish"))) {
                    answer.put("afterwards", afterwards(asked, done));
                }
            }
        } catch (Throwable error) {
            answer.put("error", causes(error));
        }
        return answer;
    }

    private static String causes(Throwable error) {
        String said = error.toString();
        for (Throwable each = error.getCause(); each != null; each = each.getCause()) {
            said += "; " + each.toString();
        }
        return said;
    }

    private Snapshot load(Map asked) {
        Object uri = asked.get("uri");
        if (!clients.containsKey(uri)) {
            Map settings = new HashMap();
            settings.put("uri", uri);
            settings.put("token", asked.get("token"));
            settings.put("deltaRestApi.enabled", "true");
            UCDeltaTokenBasedRestClient client = new UCDeltaTokenBasedRestClient(settings, new Supplier() {
                public Object get() {
                    return new Configuration();
                }
            });
            clients.put(uri, new UCCatalogManagedClient(client));
        }
        List name = (List) asked.get("name");
        Number version = (Number) asked.get("version");
        return ((UCCatalogManagedClient) clients.get(uri)).loadSnapshot(
                engine,
                (String) asked.get("id"),
                (String) asked.get("path"),
                new UCTableIdentifier((String) name.get(0), (String) name.get(1), (String) name.get(2)),
                version == null ? Optional.empty() : Optional.of(Long.valueOf(version.longValue())),
                Optional.empty());
    }

    // -- rows --------------------------------------------------------------------------------------------------------

    /** {@code tracked}: each row also has its id, and the version that changed it last. */
    private List read(Snapshot table, boolean tracked) throws Exception {
        List rows = new ArrayList();
        StructType columns = table.getSchema();
        if (tracked) {
            columns = columns.addMetadataColumn("row id", MetadataColumnSpec.ROW_ID)
                    .addMetadataColumn("row version", MetadataColumnSpec.ROW_COMMIT_VERSION);
        }
        Scan scan = table.getScanBuilder().withReadSchema(columns).build();
        Row state = scan.getScanState(engine);
        CloseableIterator batches = scan.getScanFiles(engine);
        while (batches.hasNext()) {
            CloseableIterator files = ((FilteredColumnarBatch) batches.next()).getRows();
            while (files.hasNext()) {
                rows.addAll(live(state, (Row) files.next()));
            }
        }
        batches.close();
        return rows;
    }

    /** The live rows of a file. */
    private List live(Row state, Row file) throws Exception {
        List rows = new ArrayList();
        CloseableIterator stored = engine.getParquetHandler().readParquetFiles(
                Utils.singletonCloseableIterator(InternalScanFileUtils.getAddFileStatus(file)),
                ScanStateRow.getPhysicalDataReadSchema(state),
                Optional.empty()).map(new Function() {
                    public Object apply(Object found) {
                        return ((FileReadResult) found).getData();
                    }
                });
        CloseableIterator batches = Scan.transformPhysicalData(engine, state, file, stored);
        while (batches.hasNext()) {
            FilteredColumnarBatch batch = (FilteredColumnarBatch) batches.next();
            ColumnarBatch data = batch.getData();
            ColumnVector chosen = (ColumnVector) batch.getSelectionVector().orElse(null);
            for (int i = 0; i < data.getSize(); i++) {
                if (chosen != null && (chosen.isNullAt(i) || !chosen.getBoolean(i))) {
                    continue;
                }
                List row = new ArrayList();
                for (int at = 0; at < data.getSchema().length(); at++) {
                    row.add(VectorUtils.getValueAsObject(
                            data.getColumnVector(at), data.getSchema().at(at).getDataType(), i));
                }
                rows.add(row);
            }
        }
        batches.close();
        return rows;
    }

    // -- commits -----------------------------------------------------------------------------------------------------

    /**
     * Appends rows of one partition, or rewrites the files that hold some ids, without them. The kernel rebases what
     * only appends; it does not look whether files that a commit removes are still there, so of a rewrite it makes one
     * attempt.
     */
    private TransactionCommitResult commit(Snapshot table, Map asked) throws Exception {
        boolean appends = asked.get("do").equals("append");
        Transaction transaction = table.buildUpdateTableTransaction("judge", Operation.WRITE)
                .withMaxRetries(appends ? 50 : 0)
                .build(engine);
        List actions = appends
                ? added(transaction, (List) asked.get("rows"))
                : rewritten(table, transaction, (List) asked.get("ids"));
        return transaction.commit(engine, CloseableIterable.inMemoryIterable(closeable(actions)));
    }

    /** Publishes, and writes checksums and checkpoints that are due. Returns what failed: the commit stands. */
    private List afterwards(Map asked, TransactionCommitResult done) {
        List failed = new ArrayList();
        try {
            load(asked).publish(engine);
        } catch (Throwable error) {
            failed.add("publish: " + causes(error));
        }
        for (Iterator hooks = done.getPostCommitHooks().iterator(); hooks.hasNext();) {
            PostCommitHook hook = (PostCommitHook) hooks.next();
            try {
                hook.threadSafeInvoke(engine);
            } catch (Throwable error) {
                failed.add(hook.getType() + ": " + causes(error));
            }
        }
        return failed;
    }

    private List added(Transaction transaction, List rows) throws Exception {
        Row state = transaction.getTransactionState(engine);
        List ids = new ArrayList();
        List partitions = new ArrayList();
        List values = new ArrayList();
        for (int i = 0; i < rows.size(); i++) {
            List row = (List) rows.get(i);
            ids.add(Long.valueOf(((Number) row.get(0)).longValue()));
            partitions.add(row.get(1));
            values.add(row.get(2));
        }
        StructType schema = transaction.getSchema(engine);
        ColumnVector[] columns = {
            DefaultGenericVector.fromList(schema.at(0).getDataType(), ids),
            DefaultGenericVector.fromList(schema.at(1).getDataType(), partitions),
            DefaultGenericVector.fromList(schema.at(2).getDataType(), values)
        };
        Map partition = new HashMap();
        partition.put("p", Literal.ofString((String) partitions.get(0)));
        List batches = new ArrayList();
        batches.add(new FilteredColumnarBatch(new DefaultColumnarBatch(rows.size(), schema, columns), Optional.empty()));
        CloseableIterator physical = Transaction.transformLogicalData(engine, state, closeable(batches), partition);
        DataWriteContext place = Transaction.getWriteContext(engine, state, partition);
        CloseableIterator files = engine.getParquetHandler()
                .writeParquetFiles(place.getTargetDirectory(), physical, place.getStatisticsColumns());
        return Transaction.generateAppendActions(engine, state, files, place).toInMemoryList();
    }

    private List rewritten(Snapshot table, Transaction transaction, List ids) throws Exception {
        Set gone = new HashSet();
        for (int i = 0; i < ids.size(); i++) {
            gone.add(Long.valueOf(((Number) ids.get(i)).longValue()));
        }
        List actions = new ArrayList();
        Scan scan = table.getScanBuilder().build();
        Row state = scan.getScanState(engine);
        CloseableIterator batches = scan.getScanFiles(engine);
        while (batches.hasNext()) {
            CloseableIterator files = ((FilteredColumnarBatch) batches.next()).getRows();
            while (files.hasNext()) {
                Row file = (Row) files.next();
                List rows = live(state, file);
                List left = new ArrayList();
                for (int i = 0; i < rows.size(); i++) {
                    if (!gone.contains(((List) rows.get(i)).get(0))) {
                        left.add(rows.get(i));
                    }
                }
                if (left.size() == rows.size()) {
                    continue;
                }
                AddFile old = new AddFile(file.getStruct(InternalScanFileUtils.ADD_FILE_ORDINAL));
                Optional now = Optional.of(Long.valueOf(System.currentTimeMillis()));
                actions.add(SingleAction.createRemoveFileSingleAction(old.toRemoveFileRow(true, now)));
                if (left.size() > 0) {
                    actions.addAll(added(transaction, left));
                }
            }
        }
        batches.close();
        return actions;
    }

    private static CloseableIterator closeable(List values) {
        final Iterator each = values.iterator();
        return new CloseableIterator() {
            public boolean hasNext() {
                return each.hasNext();
            }

            public Object next() {
                return each.next();
            }

            public void close() {}
        };
    }
}
