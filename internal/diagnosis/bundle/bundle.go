//go:build linux

// Package bundle collects what a report about a node needs: a tar.gz of texts, without secrets. It changes nothing, and
// what it cannot read does not end it.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// What a bundle takes at most, in bytes before it is compressed. A file is mailed and looked through by people.
const (
	maxFile  = 1 << 20
	maxTotal = 32 << 20
)

// Bundle is an archive that is being written.
type Bundle struct {
	gz       *gzip.Writer
	tar      *tar.Writer
	dir      string // in the archive
	scrub    *Scrubber
	time     time.Time
	left     int
	index    []string
	troubles []string
	err      error // of the writer
}

// New starts an archive of that directory. Whatever is added goes through the scrubber's Text, whoever adds it. It must not be nil.
func New(w io.Writer, dir string, scrub *Scrubber) *Bundle {
	gz := gzip.NewWriter(w)
	return &Bundle{gz: gz, tar: tar.NewWriter(gz), dir: dir, scrub: scrub, time: time.Now(), left: maxTotal}
}

// Fail notes what could not be collected, for errors.txt.
func (b *Bundle) Fail(name string, err error) {
	for line := range strings.Lines(err.Error()) {
		b.troubles = append(b.troubles, name+": "+b.scrub.Text(strings.TrimSpace(line)))
	}
}

// Add adds a text, and an error if the text is not all there is. Of one that is too long it keeps the beginning.
func (b *Bundle) Add(name string, text []byte, err error) {
	if err != nil {
		b.Fail(name, err)
		if len(text) == 0 {
			return
		}
	}
	clean := []byte(b.scrub.Text(string(text)))
	if most := min(maxFile, b.left); len(clean) > most {
		b.Fail(name, fmt.Errorf("only %d of %d bytes are here", most, len(clean)))
		clean = clean[:most]
	}
	b.left -= len(clean)
	b.index = append(b.index, fmt.Sprintf("%8d %s", len(clean), name))
	b.write(name, clean)
}

func (b *Bundle) write(name string, text []byte) {
	if b.err != nil {
		return
	}
	b.err = b.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: path.Join(b.dir, name), Mode: 0o600, Size: int64(len(text)), ModTime: b.time,
	})
	if b.err == nil {
		_, b.err = b.tar.Write(text)
	}
}

// Close adds the list of files and that of troubles, and ends the archive. Its error is that of the writer.
func (b *Bundle) Close() error {
	b.write("index.txt", []byte(strings.Join(b.index, "\n")+"\n"))
	if len(b.troubles) > 0 {
		b.write("errors.txt", []byte(strings.Join(b.troubles, "\n")+"\n"))
	}
	return errors.Join(b.err, b.tar.Close(), b.gz.Close())
}

// errEnd says that a text's beginning is missing.
type errEnd struct{ size int64 }

func (e errEnd) Error() string {
	return fmt.Sprintf("only the last %d of %d bytes are here", maxFile, e.size)
}

// ReadEnd returns the last MiB of a file, by whole lines. Beside a text, the error says that there is more.
func ReadEnd(name string) ([]byte, error) {
	f, size, err := open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if size <= maxFile {
		return io.ReadAll(io.LimitReader(f, maxFile))
	}
	text, err := io.ReadAll(io.NewSectionReader(f, size-maxFile, maxFile))
	if err != nil {
		return nil, err
	}
	_, text, _ = bytes.Cut(text, []byte("\n"))
	return text, errEnd{size}
}

// Read returns a file of at most a MiB.
func Read(name string) ([]byte, error) {
	f, size, err := open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if size > maxFile {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", name, size, maxFile)
	}
	return io.ReadAll(io.LimitReader(f, maxFile)) // a file of /proc has no size
}

// open opens a regular file. Anything else might block.
func open(name string) (*os.File, int64, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, &fs.PathError{Op: "read", Path: name, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(name)
	return f, info.Size(), err
}

// maxEntries bounds the list of a directory.
const maxEntries = 2000

// List lists a directory: modes, owners, sizes, times, names, and where links lead.
func List(dir string) ([]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s: %d entries\n", dir, len(entries))
	for _, e := range entries[:min(len(entries), maxEntries)] {
		info, err := e.Info()
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", e.Name(), err)
			continue
		}
		fmt.Fprintf(&b, "%s %s %10d %s %q", info.Mode(), owner(info), info.Size(), info.ModTime().UTC().Format(time.RFC3339), e.Name())
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			fmt.Fprintf(&b, " -> %q", to)
		}
		b.WriteByte('\n')
	}
	return b.Bytes(), nil
}
