package printers

import (
	"cmp"
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Show prints live rules, once or again and again.
type Show struct {
	Watch    bool
	output   string
	interval time.Duration
}

// Describe gives the command its flags.
func (s *Show) Describe(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.VarP(cli.Choice(&s.output, "text", "json"), "output", "o", "text or json")
	fs.BoolVarP(&s.Watch, "watch", "w", false, "show the rules again and again, with what each has matched since")
	fs.DurationVar(&s.interval, "interval", 2*time.Second, "with --watch: how often")
}

// Once reports whether the rules are printed once, for people.
func (s *Show) Once() bool { return !s.Watch && s.output != "json" }

// Check refuses an interval that is none.
func (s *Show) Check() error {
	if s.interval <= 0 {
		return cli.Usagef("--interval %s: not above 0", s.interval)
	}
	return nil
}

// Print prints what read returns, also beside an error, until ctx ends if the rules are watched. Clear goes before each time.
func (s *Show) Print(ctx context.Context, out io.Writer, clear func(), read func() (ruleset.Live, error)) error {
	var before ruleset.Live
	for {
		live, err := read()
		switch {
		case ctx.Err() != nil && s.Watch:
			return nil //nolint:nilerr // the caller ended it
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case live == nil && err != nil:
			return err
		}
		live.Since(before)
		if s.Watch {
			clear()
		}
		printed := error(nil)
		if s.output == "json" {
			printed = JSON(out, append(ruleset.Live{}, live...))
		} else {
			printed = live.Write(out)
		}
		if printed != nil || err != nil || !s.Watch {
			return cmp.Or(printed, err)
		}
		before = live
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.interval):
		}
	}
}
