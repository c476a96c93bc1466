package cli

import (
	"io"
	"log/slog"

	"github.com/meshcni/meshcni/internal/text/visible"
)

// Logger returns a program's log: JSON, one record a line. Durations are written as 1.5s, where slog's own way is a number of
// nanoseconds. Characters that do not print are escapes: people read logs in a terminal, and pods' texts are in them.
func Logger(to io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewJSONHandler(visible.JSON(to), &slog.HandlerOptions{Level: level, ReplaceAttr: durations}))
}

func durations(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}
