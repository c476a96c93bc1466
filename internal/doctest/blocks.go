package doctest

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// The tags of blocks that something runs.
const (
	Local   = "local"
	Root    = "root"
	Cluster = "cluster"
)

// Block is one fenced block of a Markdown file.
type Block struct {
	// File is the file's path as it was given.
	File string
	// Line is the number of the line of the opening fence, from 1.
	Line int
	// Lang is the language that the fence names, such as sh or go; "" when it names none.
	Lang string
	// Text is what stands between the fences, with the newline of its last line.
	Text string
	// Tag says who runs it: Local, Root, Cluster; "" is nobody.
	Tag string
	// Exit is the code that it must end with.
	Exit int
	// NotRun is the reason that the file gives for a command that nobody runs; "" when it gives none.
	NotRun string
	// Mark is any other HTML comment right above the block, without its brackets.
	Mark string
	// Expect are the lines that the block must print, in this order; nil when the file doesn't say.
	Expect []string
	// ExpectAll says that it may print nothing else.
	ExpectAll bool
}

// String is the place of the block, as FILE:LINE.
func (b Block) String() string { return fmt.Sprintf("%s:%d", b.File, b.Line) }

// Blocks returns the blocks of a Markdown file that have this tag, in the order of the file. A file that cannot be
// read, an unknown mark, or a mark without its block is an error.
func Blocks(file, tag string) ([]Block, error) {
	all, err := Parse(file)
	if err != nil {
		return nil, err
	}
	var tagged []Block
	for _, b := range all {
		if b.Tag == tag {
			tagged = append(tagged, b)
		}
	}
	return tagged, nil
}

// Parse returns every fenced block of a Markdown file, in the order of the file, but those under an expect mark, which
// are in Expect of the block that they belong to. Its errors are those of [Blocks], all of them at once.
func Parse(file string) ([]Block, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read documentation: %w", err)
	}
	return parse(file, string(text))
}

var (
	fence   = regexp.MustCompile("^( *)(```+|~~~+) *([A-Za-z0-9+-]*)")
	comment = regexp.MustCompile(`^\s*<!--\s*(.*?)\s*-->\s*$`)
	runMark = regexp.MustCompile(`^run: *(\w+)(?:, exit (\d+))?$`)
)

// reader reads lines from the first to the last.
type reader struct {
	file   string
	blocks []Block
	errs   []error
	mark   string // the comment that waits for its block
	markAt int
}

func parse(file, text string) ([]Block, error) {
	p := reader{file: file}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if m := fence.FindStringSubmatch(line); m != nil {
			end := i + 1
			for end < len(lines) && strings.TrimSpace(lines[end]) != m[2] {
				end++
			}
			if end == len(lines) {
				p.fail(i, "a block that does not end")
				break
			}
			p.block(i, m[3], unindent(lines[i+1:end], m[1]))
			i = end
			continue
		}
		if m := comment.FindStringSubmatch(line); m != nil {
			p.orphan()
			p.mark, p.markAt = m[1], i
			continue
		}
		if strings.TrimSpace(line) != "" {
			p.orphan()
		}
	}
	p.orphan()
	return p.blocks, errors.Join(p.errs...)
}

func (p *reader) fail(line int, what string) {
	p.errs = append(p.errs, fmt.Errorf("%s:%d: %s", p.file, line+1, what))
}

// orphan is called where no block can follow the mark any more. A comment that is no mark of ours is anybody's.
func (p *reader) orphan() {
	for _, ours := range []string{"run:", "not run:", "expect"} {
		if strings.HasPrefix(p.mark, ours) {
			p.fail(p.markAt, fmt.Sprintf("no block follows the mark %q", p.mark))
		}
	}
	p.mark = ""
}

func (p *reader) block(line int, lang, text string) {
	mark := p.mark
	p.mark = ""
	if mark == "expect" || mark == "expect: all" {
		if len(p.blocks) == 0 || p.blocks[len(p.blocks)-1].Tag == "" || p.blocks[len(p.blocks)-1].Expect != nil {
			p.fail(line, "nothing that is run stands before what is expected")
			return
		}
		last := &p.blocks[len(p.blocks)-1]
		last.Expect = strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		last.ExpectAll = mark == "expect: all"
		return
	}
	b := Block{File: p.file, Line: line + 1, Lang: lang, Text: text}
	switch m := runMark.FindStringSubmatch(mark); {
	case m != nil:
		b.Tag = m[1]
		b.Exit, _ = strconv.Atoi(m[2]) // digits, or none: 0
		if b.Tag != Local && b.Tag != Root && b.Tag != Cluster {
			p.fail(line, fmt.Sprintf("nobody runs %q; it is local, root or cluster", b.Tag))
		}
		if lang != "sh" {
			p.fail(line, fmt.Sprintf("a block to be run is sh, not %q", lang))
		}
	case strings.HasPrefix(mark, "run:"), strings.HasPrefix(mark, "expect"):
		p.fail(line, fmt.Sprintf("unknown mark %q", mark))
	case strings.HasPrefix(mark, "not run:"):
		b.NotRun = strings.TrimSpace(strings.TrimPrefix(mark, "not run:"))
		if b.NotRun == "" {
			p.fail(line, "say why it is not run")
		}
	default:
		b.Mark = mark
	}
	p.blocks = append(p.blocks, b)
}

// unindent takes the fence's own indentation from each line, as CommonMark does.
func unindent(lines []string, indent string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.TrimPrefix(l, indent))
		b.WriteByte('\n')
	}
	return b.String()
}
