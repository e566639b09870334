package oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Kafka's command line tools, run by their main methods in a class loader of their own, for they are of another release. */
final class Tools {
    private static ClassLoader loader;

    /** What the end of the tool's process would be. */
    @SuppressWarnings("serial")
    private static final class Exited extends RuntimeException {
        final int code;

        Exited(int code, Object message) {
            super(String.valueOf(message));
            this.code = code;
        }
    }

    static void register(Map<String, Oracle.Call> calls) {
        calls.put("tool", Tools::run);
    }

    /** {"code", "out", "err"} of a tool; what it throws goes to err as the JVM would print it, with code 1. */
    private static Object run(JsonNode arguments) throws Exception {
        List<String> words = new ArrayList<>();
        arguments.get("arguments").forEach(word -> words.add(word.textValue()));
        Method main = loader().loadClass(arguments.get("main").textValue()).getMethod("main", String[].class);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream oldOut = System.out;
        PrintStream oldErr = System.err;
        ClassLoader oldLoader = Thread.currentThread().getContextClassLoader();
        int code = 0;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Thread.currentThread().setContextClassLoader(loader());
        try {
            main.invoke(null, (Object) words.toArray(new String[0]));
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Exited) {
                code = ((Exited) error.getCause()).code;
            } else {
                code = 1;
                System.err.print("Exception in thread \"main\" ");
                error.getCause().printStackTrace();
            }
        } finally {
            System.out.flush();
            System.err.flush();
            System.setOut(oldOut);
            System.setErr(oldErr);
            Thread.currentThread().setContextClassLoader(oldLoader);
        }
        return Map.of(
            "code", code,
            "out", out.toString(StandardCharsets.UTF_8),
            "err", err.toString(StandardCharsets.UTF_8));
    }

    private static ClassLoader loader() throws Exception {
        if (loader == null) {
            List<URL> jars = new ArrayList<>();
            for (String jar : System.getProperty("oracle.tools").split(File.pathSeparator)) {
                jars.add(new File(jar).toURI().toURL());
            }
            loader = new URLClassLoader(jars.toArray(new URL[0]), ClassLoader.getPlatformClassLoader());
            // A tool that wants to end its process ends its call instead.
            Class<?> exit = loader.loadClass("org.apache.kafka.common.utils.Exit");
            Class<?> procedure = loader.loadClass("org.apache.kafka.common.utils.Exit$Procedure");
            Object thrower = Proxy.newProxyInstance(loader, new Class<?>[] {procedure}, (proxy, method, values) -> {
                throw new Exited((Integer) values[0], values[1]);
            });
            exit.getMethod("setExitProcedure", procedure).invoke(null, thrower);
            exit.getMethod("setHaltProcedure", procedure).invoke(null, thrower);
        }
        return loader;
    }

    private Tools() {}
}
