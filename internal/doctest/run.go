package doctest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// Run runs the block by bash -euo pipefail in folder dir, with env added to the environment, and returns what it
// printed, standard output and error as one. The error says what was expected and is not so: another exit code than
// the block's (it wraps *exec.ExitError then), or lines that are missing.
func (b Block) Run(ctx context.Context, dir string, env ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", b.Text)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		return out.String(), fmt.Errorf("%s: run: %w", b, err)
	}
	if code != b.Exit && err != nil {
		return out.String(), fmt.Errorf("%s: expected exit code %d: %w", b, b.Exit, err)
	} else if code != b.Exit {
		return out.String(), fmt.Errorf("%s: expected exit code %d, got 0", b, b.Exit)
	}
	return out.String(), b.Check(out.String())
}

// Check compares what the block printed with what is expected. The error names the first line that is missing.
func (b Block) Check(output string) error {
	if b.Expect == nil {
		return nil
	}
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	at := 0
	for _, want := range b.Expect {
		like := pattern(want)
		from := at
		for at < len(lines) && !like.MatchString(lines[at]) {
			at++
		}
		if at == len(lines) {
			return fmt.Errorf("%s: no line like %q after the first %d lines of the output", b, want, from)
		}
		if b.ExpectAll && at != from {
			return fmt.Errorf("%s: line %d of the output is %q, not %q", b, from+1, lines[from], want)
		}
		at++
	}
	if b.ExpectAll && at != len(lines) {
		return fmt.Errorf("%s: line %d of the output is %q, and none is expected", b, at+1, lines[at])
	}
	return nil
}

// pattern makes a whole line's pattern, in which … is anything. Space at the end of a line does not show.
func pattern(line string) *regexp.Regexp {
	parts := strings.Split(strings.TrimRight(line, " \t"), "…")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return regexp.MustCompile(`^` + strings.Join(parts, `.*`) + `\s*$`)
}
