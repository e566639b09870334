package oracle;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;

/**
 * Kafka's clients and tools in one process: a call is a line of JSON on standard input, its answer a line on standard
 * output. {"call": "topicIds", "servers": "…"} gets {"answer": …} or {"error": "SimpleName", "message", "trace"}.
 * Bytes are base64. It ends when standard input does, and then closes nothing: an open transaction stays open.
 */
public final class Oracle {
    /** One kind of call. */
    interface Call {
        Object answer(JsonNode arguments) throws Exception;
    }

    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Map<String, Call> calls = new HashMap<>();
        Topics.register(calls);
        Producers.register(calls);
        Consumers.register(calls);
        Tools.register(calls);
        Storage.register(calls);
        Timed.register(calls);
        Tiered.register(calls);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(JSON.writeValueAsString(answer(calls, JSON.readTree(line))));
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> answer(Map<String, Call> calls, JsonNode request) {
        try {
            Call call = calls.get(request.get("call").textValue());
            if (call == null) {
                throw new IllegalArgumentException("no such call: " + request.get("call"));
            }
            return Collections.singletonMap("answer", call.answer(request));
        } catch (Throwable error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            return Map.of(
                "error", cause.getClass().getSimpleName(),
                "message", String.valueOf(cause.getMessage()),
                "trace", trace.toString());
        }
    }

    private Oracle() {}
}
