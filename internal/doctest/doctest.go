// Package doctest checks the documentation against the tree. It runs the commands that Markdown pages show, and compares their
// output with what the pages say.
//
// A command is a fenced block whose language is sh. An HTML comment above it says who runs it:
//
//	<!-- run: local -->            the tests of this package; needs neither root nor a cluster
//	<!-- run: root -->             the tests of this package; needs root on Linux
//	<!-- run: cluster -->          the one-node cluster of e2e/cluster, in the order of the page
//	<!-- run: release -->          e2e/release, in a directory with a release's files
//	<!-- run: find TROUBLE -->     the same cluster, once a test has caused that trouble: the block finds it
//	<!-- run: cure TROUBLE -->     and this one is the remedy
//	<!-- run: local, exit 1 -->    the same as local, and the block must end with exit code 1
//	<!-- not run: why -->          nobody, for the reason given
//
// A text block under `<!-- expect -->` has lines that the command above it must print, in this order. Other lines may come
// between them, and … in a line matches anything. With `<!-- expect: all -->` the command may print nothing else.
//
// Each block is a `bash -euo pipefail` of its own, in the root of the repository unless said otherwise. Blocks share only files.
package doctest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// Who runs a block.
const (
	Local   = "local"
	Root    = "root"
	Cluster = "cluster"
	Release = "release"
	Find    = "find"
	Cure    = "cure"
)

// Block is a fenced block of a Markdown page.
type Block struct {
	// File is the page's path, as given to [Parse], and Line the number of the opening fence's line, from 1.
	File string
	Line int
	// Lang is the fence's language, such as sh; "" for none.
	Lang string
	// Text is the content, with its final newline.
	Text string
	// Tag is who runs the block: Local, Root, Cluster, Release, Find or Cure; "" is nobody.
	Tag string
	// Trouble is what a Find block finds and a Cure block cures; "" for others.
	Trouble string
	// Exit is the exit code that the block must end with.
	Exit int
	// NotRun is the reason given by a "not run" comment.
	NotRun string
	// Mark is the text of another HTML comment directly above the block, such as "from: FILE".
	Mark string
	// Expect has the lines that the block must print; nil if the page does not say.
	Expect []string
	// ExpectAll says that the block must print nothing else.
	ExpectAll bool
}

// String returns FILE:LINE.
func (b Block) String() string { return fmt.Sprintf("%s:%d", b.File, b.Line) }

var (
	fence   = regexp.MustCompile("^( *)(```+|~~~+) *([A-Za-z0-9+-]*)")
	comment = regexp.MustCompile(`^\s*<!--\s*(.*?)\s*-->\s*$`)
	runMark = regexp.MustCompile(`^run: *(?:(local|root|cluster|release)|(find|cure) ([a-z-]+))(?:, exit (\d+))?$`)
	ourMark = regexp.MustCompile(`^(run:|not run:|expect)`)
)

// Parse returns the fenced blocks of a page, in order. Expected output is no block of its own: it is in Expect of the
// block that prints it. The error lists every malformed mark and block.
func Parse(file, text string) ([]Block, error) {
	var blocks []Block
	var errs []error
	fail := func(line int, what string) { errs = append(errs, fmt.Errorf("%s:%d: %s", file, line+1, what)) }
	mark, markLine := "", 0
	setMark := func(next string, line int) {
		if ourMark.MatchString(mark) {
			fail(markLine, fmt.Sprintf("no block follows the mark %q", mark))
		}
		mark, markLine = next, line
	}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		open := fence.FindStringSubmatch(lines[i])
		if open == nil {
			if m := comment.FindStringSubmatch(lines[i]); m != nil {
				setMark(m[1], i)
			} else if strings.TrimSpace(lines[i]) != "" {
				setMark("", i)
			}
			continue
		}
		b := Block{File: file, Line: i + 1, Lang: open[3]}
		for i++; i < len(lines) && strings.TrimSpace(lines[i]) != open[2]; i++ {
			b.Text += strings.TrimPrefix(lines[i], open[1]) + "\n"
		}
		if i == len(lines) {
			fail(b.Line-1, "a block that does not end")
		} else if err := b.mark(mark, &blocks); err != nil {
			fail(b.Line-1, err.Error())
		}
		mark = ""
	}
	setMark("", 0)
	return blocks, errors.Join(errs...)
}

// mark applies the comment above the block, and appends the block to the page's, or to the last of them as its output.
func (b Block) mark(mark string, blocks *[]Block) error {
	run := runMark.FindStringSubmatch(mark)
	reason, notRun := strings.CutPrefix(mark, "not run:")
	switch {
	case run != nil:
		b.Tag, b.Trouble = run[1]+run[2], run[3]
		b.Exit, _ = strconv.Atoi(run[4]) // no digits: 0
		if b.Lang != "sh" {
			return fmt.Errorf("a block to be run is sh, not %q", b.Lang)
		}
	case notRun:
		if b.NotRun = strings.TrimSpace(reason); b.NotRun == "" {
			return errors.New("say why it is not run")
		}
	case mark == "expect", mark == "expect: all":
		if len(*blocks) == 0 || (*blocks)[len(*blocks)-1].Tag == "" || (*blocks)[len(*blocks)-1].Expect != nil {
			return errors.New("nothing that is run stands before what is expected")
		}
		last := &(*blocks)[len(*blocks)-1]
		last.Expect, last.ExpectAll = strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n"), mark == "expect: all"
		return nil
	case ourMark.MatchString(mark):
		return fmt.Errorf("unknown mark %q", mark)
	default:
		b.Mark = mark
	}
	*blocks = append(*blocks, b)
	return nil
}

// Run runs the block in dir with env added to the environment, and returns its output, stdout and stderr together. The
// error says what differs from the page: the exit code (use errors.As with *exec.ExitError) or the output.
func (b Block) Run(ctx context.Context, dir string, env ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", b.Text)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	exit := (*exec.ExitError)(nil)
	switch {
	case err != nil && !errors.As(err, &exit):
		return string(out), fmt.Errorf("%s: run: %w", b, err)
	case cmd.ProcessState.ExitCode() == b.Exit:
		return string(out), b.compare(string(out))
	case err == nil:
		return string(out), fmt.Errorf("%s: expected exit code %d, got 0", b, b.Exit)
	}
	return string(out), fmt.Errorf("%s: expected exit code %d: %w", b, b.Exit, err)
}

// compare looks for the expected lines. The error names the first that is missing, or the first that is too many.
func (b Block) compare(output string) error {
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	at := 0
	for _, want := range b.Expect {
		from, like := at, pattern(want)
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

// pattern matches a whole line, in which … is anything. Trailing blanks do not count.
func pattern(line string) *regexp.Regexp {
	quoted := regexp.QuoteMeta(strings.TrimRight(line, " \t"))
	return regexp.MustCompile(`^` + strings.ReplaceAll(quoted, "…", `.*`) + `\s*$`)
}
