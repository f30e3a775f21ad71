import java.util.Arrays;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.spark.SparkThrowable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.XXH64;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** Answers of Spark, each as one line: how many rows, and a fingerprint of them in no order that knows every bit. */
public class SparkAnswers {
    /**
     * One line for each condition on the rows of a query, which is analyzed once; without one the conditions are
     * queries. They run as they come, {@code threads} at a time.
     */
    public String[] answers(final SparkSession spark, String source, final String[] asked, int threads)
            throws Exception {
        final Dataset rows;
        scala.Option before = SparkSession.getActiveSession();
        try {
            SparkSession.setActiveSession(spark);
            rows = source == null ? null : (Dataset) spark.sql(source);
        } catch (Throwable error) {
            String[] failed = new String[asked.length];
            Arrays.fill(failed, failure(error));
            return failed;
        } finally {
            activate(before);
        }
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            Future[] waiting = new Future[asked.length];
            for (int i = 0; i < asked.length; i++) {
                final String each = asked[i];
                waiting[i] = pool.submit(new Callable() {
                    public Object call() {
                        return answer(spark, rows, each);
                    }
                });
            }
            String[] found = new String[asked.length];
            for (int i = 0; i < found.length; i++) {
                found[i] = (String) waiting[i].get();
            }
            return found;
        } finally {
            pool.shutdownNow();
        }
    }

    /**
     * A view of the files that a query reads: filters on it reach the files' reader, with what their footers say, and
     * the table's log is not asked again which files may hold such rows.
     */
    public String pin(SparkSession spark, String query, String view) {
        scala.Option before = SparkSession.getActiveSession();
        try {
            SparkSession.setActiveSession(spark);
            QueryExecution execution = ((Dataset) spark.sql(query)).queryExecution();
            Dataset.ofRows(spark, execution.optimizedPlan()).createOrReplaceTempView(view);
            return "";
        } catch (Throwable error) {
            return failure(error);
        } finally {
            activate(before);
        }
    }

    /** Reads a query's rows once, and makes them a view: filters on it are evaluated row by row, nothing is skipped. */
    public String hold(SparkSession spark, String query, String view) {
        scala.Option before = SparkSession.getActiveSession();
        try {
            SparkSession.setActiveSession(spark);
            QueryExecution execution = ((Dataset) spark.sql(query)).queryExecution();
            InternalRow[] rows = execution.executedPlan().executeCollect();
            scala.collection.immutable.Seq held =
                scala.collection.immutable.ArraySeq$.MODULE$.unsafeWrapArray(rows);
            LogicalPlan relation =
                new LocalRelation(execution.analyzed().output(), held, false, scala.Option.apply(null));
            Dataset.ofRows(spark, relation).createOrReplaceTempView(view);
            return rows.length + " rows";
        } catch (Throwable error) {
            return failure(error);
        } finally {
            activate(before);
        }
    }

    /** The caller's thread goes on in the session that it had: others run their tests there. */
    private static void activate(scala.Option session) {
        if (session.isDefined()) {
            SparkSession.setActiveSession((SparkSession) session.get());
        } else {
            SparkSession.clearActiveSession();
        }
    }

    private static String answer(SparkSession spark, Dataset of, String asked) {
        try {
            SparkSession.setActiveSession(spark);
            Dataset query = (Dataset) (of == null ? spark.sql(asked) : of.filter(asked));
            QueryExecution execution = query.queryExecution();
            InternalRow[] rows = execution.executedPlan().executeCollect();
            StructType schema = execution.executedPlan().schema();
            long sum = 0;
            long mixed = 0;
            for (int i = 0; i < rows.length; i++) {
                long hash = ofRow(rows[i], schema, 42L);
                sum += hash;
                mixed ^= XXH64.hashLong(hash, 7L);
            }
            return rows.length + " rows, " + Long.toHexString(sum) + Long.toHexString(mixed);
        } catch (Throwable error) {
            return failure(error);
        }
    }

    /** Not of the bytes that Spark holds a row in: those of null elements are whatever was there before. */
    private static long ofRow(InternalRow row, StructType schema, long seed) {
        long hash = seed;
        for (int i = 0; i < schema.length(); i++) {
            DataType type = schema.apply(i).dataType();
            hash = ofValue(row.isNullAt(i) ? null : row.get(i, type), type, hash);
        }
        return hash;
    }

    private static long ofArray(ArrayData array, DataType type, long seed) {
        long hash = XXH64.hashInt(array.numElements(), seed);
        for (int i = 0; i < array.numElements(); i++) {
            hash = ofValue(array.isNullAt(i) ? null : array.get(i, type), type, hash);
        }
        return hash;
    }

    private static long ofValue(Object value, DataType type, long seed) {
        if (value == null) {
            return XXH64.hashInt(-1, seed);
        } else if (value instanceof InternalRow) {
            return ofRow((InternalRow) value, (StructType) type, XXH64.hashInt(1, seed));
        } else if (value instanceof ArrayData) {
            return ofArray((ArrayData) value, ((ArrayType) type).elementType(), seed);
        } else if (value instanceof MapData) {
            MapData map = (MapData) value;
            long keys = ofArray(map.keyArray(), ((MapType) type).keyType(), seed);
            return ofArray(map.valueArray(), ((MapType) type).valueType(), keys);
        } else if (value instanceof Double) {
            return XXH64.hashLong(Double.doubleToRawLongBits(((Double) value).doubleValue()), seed);
        } else if (value instanceof Float) {
            return XXH64.hashInt(Float.floatToRawIntBits(((Float) value).floatValue()), seed);
        } else if (value instanceof Number) {
            return XXH64.hashLong(((Number) value).longValue(), seed);
        }
        byte[] bytes = value instanceof byte[] ? (byte[]) value
            : value instanceof UTF8String ? ((UTF8String) value).getBytes() : value.toString().getBytes();
        return XXH64.hashUnsafeBytes(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length, XXH64.hashInt(bytes.length, seed));
    }

    private static String failure(Throwable error) {
        String said = error.getClass().getSimpleName() + " " + error.getMessage();
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof SparkThrowable && ((SparkThrowable) each).getCondition() != null) {
                said = ((SparkThrowable) each).getCondition();
            }
        }
        return "fails: " + said;
    }
}
