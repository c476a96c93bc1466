package printers

import (
	"cmp"
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/text/visible"
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

// Check refuses an interval that is none.
func (s *Show) Check() error {
	if s.interval <= 0 {
		return cli.Usagef("--interval %s: not above 0", s.interval)
	}
	return nil
}

// Seen holds a pod's live rules, and those wanted ones that are not in force, or cannot be told to be.
type Seen struct {
	Live     ruleset.Live
	Findings []Finding
}

// Finding is something that is not as wanted. In JSON it is an element of the list of rules, after them.
type Finding struct {
	// Code is the kind of a difference, or that of a bypass.
	Code string `json:"code"`
	Text string `json:"finding"`
}

// Find adds what is to be said.
func (s *Seen) Find(open []dialect.Bypass, diffs []ruleset.Difference) {
	for _, b := range open {
		s.Findings = append(s.Findings, Finding{string(b.Code), b.String()})
	}
	for _, d := range diffs {
		s.Findings = append(s.Findings, Finding{string(d.Kind), d.String()})
	}
}

func (s *Seen) write(out io.Writer, asJSON bool) error {
	if asJSON {
		all := []any{}
		for i := range s.Live {
			all = append(all, s.Live[i])
		}
		for _, f := range s.Findings {
			all = append(all, f)
		}
		return JSON(out, all)
	}
	if err := s.Live.Write(out); err != nil {
		return err
	}
	p := visible.To(out)
	for _, f := range s.Findings {
		p.Printf("%s: %s\n", f.Code, f.Text)
	}
	return p.Err()
}

// Print prints what read returns, also beside an error, until ctx ends if the rules are watched. Clear goes before each time.
func (s *Show) Print(ctx context.Context, out io.Writer, clear func(), read func() (Seen, error)) error {
	var before ruleset.Live
	for {
		seen, err := read()
		switch {
		case ctx.Err() != nil && s.Watch:
			return nil //nolint:nilerr // the caller ended it
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case seen.Live == nil && err != nil:
			return err
		}
		seen.Live.Since(before)
		if s.Watch {
			clear()
		}
		if printed := seen.write(out, s.output == "json"); printed != nil || err != nil || !s.Watch {
			return cmp.Or(printed, err)
		}
		before = seen.Live
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.interval):
		}
	}
}
