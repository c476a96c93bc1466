package redirectcmd

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/meshcni/meshcni/cmd/internal/cli"
)

// istioLog holds the flags by which every program of Istio's says what it logs.
type istioLog struct {
	flags *pflag.FlagSet
	level string
	json  bool
}

// levels are those of Istio's programs, each with less than the one before.
var levels = []string{"debug", "info", "warn", "error", "fatal", "none"}

// ignoredLog are the flags about where the log goes, and about the code that logs.
var ignoredLog = []string{"log_caller", "log_rotate", "log_rotate_max_age", "log_rotate_max_backups", "log_rotate_max_size", "log_stacktrace_level", "vklog"}

const noLog = "this program has no log but its output"

func (l *istioLog) declare(fs *pflag.FlagSet) {
	l.flags = fs
	fs.StringVar(&l.level, "log_output_level", "default:info", "how much is said, as scope:level,...: debug, info, warn, error, fatal or none; the only scope here is default")
	fs.BoolVar(&l.json, "log_as_json", false, "say it in JSON, an object a line")
	fs.StringArray("log_target", nil, noEffect+noLog)
	for _, name := range ignoredLog {
		fs.String(name, "", noEffect+noLog)
	}
}

// begin makes the command say what the flags ask for.
func (l *istioLog) begin(c *common) error {
	level := slices.Index(levels, "info")
	for part := range strings.SplitSeq(l.level, ",") {
		scope, word, ok := strings.Cut(part, ":")
		if !ok {
			scope, word = "default", part
		}
		switch i := slices.Index(levels, word); {
		case i < 0:
			return cli.Usagef("--log_output_level=%q: %q is not one of %s", l.level, word, strings.Join(levels, ", "))
		case scope == "default" || scope == "all":
			level = i
		}
	}
	if c.json != nil {
		*c.json = l.json
	}
	if level > slices.Index(levels, "info") {
		c.Stdout = io.Discard
	}
	c.quiet = level > slices.Index(levels, "warn")
	for _, name := range append(ignoredLog, "log_target") {
		if l.flags.Changed(name) {
			c.say("--" + name + " has " + noEffect + noLog)
		}
	}
	return nil
}

// lines writes what it gets, as it is or as a JSON object for each line.
type lines struct {
	to    io.Writer
	json  *bool
	level slog.Level
	rest  []byte
}

// Write fails as the writer below does.
func (l *lines) Write(p []byte) (int, error) {
	if !*l.json {
		return l.to.Write(p)
	}
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.rest = rest
		if err := l.put(string(line)); err != nil {
			return 0, err
		}
	}
}

// put writes a line with the keys that Istio's logs have.
func (l *lines) put(line string) error {
	level := l.level
	if strings.HasPrefix(strings.ToLower(line), "warning: ") {
		level = slog.LevelWarn
	}
	h := slog.NewJSONHandler(l.to, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey {
			a.Value = slog.StringValue(strings.ToLower(level.String()))
		}
		return a
	}})
	return h.Handle(context.Background(), slog.NewRecord(time.Now(), level, line, 0))
}
