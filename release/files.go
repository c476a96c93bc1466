package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// file is a regular file of an archive, or a link. All belong to root.
type file struct {
	// name is its path in the archive, with slashes and none in front.
	name string
	mode fs.FileMode
	// data is its content, unless path is set: then it is a copy of that file on this machine.
	data []byte
	path string
	// link makes it a symbolic link to that name, which has neither content nor mode.
	link string
}

// content opens what the file holds, and tells its length.
func (f file) content() (io.ReadCloser, int64, error) {
	if f.path == "" {
		return io.NopCloser(bytes.NewReader(f.data)), int64(len(f.data)), nil
	}
	in, err := os.Open(f.path)
	if err != nil {
		return nil, 0, err
	}
	st, err := in.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, in.Close())
	}
	return in, st.Size(), nil
}

// digest is the SHA-256 of a file of this machine, in hexadecimal.
func digest(path string) (string, error) {
	in, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer in.Close()
	h := sha256.New()
	_, err = io.Copy(h, in)
	return hex.EncodeToString(h.Sum(nil)), err
}

// directory returns the files in a directory of this machine, with mode 0644.
func directory(dir string) (list []file, err error) {
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, file{name: name, mode: 0o644, path: filepath.Join(dir, name)})
		}
		return err
	})
	return list, err
}

// below returns the files moved into a directory.
func below(dir string, list []file) []file {
	moved := slices.Clone(list)
	for i := range moved {
		moved[i].name = path.Join(dir, moved[i].name)
	}
	return moved
}

// compressor begins a compressed stream. Those here are a module's, not the standard library's, so that go.mod decides on their
// version, whichever Go runs this.
type compressor func(io.Writer) (io.WriteCloser, error)

// gzipped compresses with a level from 1 to 9. The header has no name and no time.
func gzipped(level int) compressor {
	return func(w io.Writer) (io.WriteCloser, error) {
		gz, err := gzip.NewWriterLevel(w, level)
		if err == nil {
			gz.ModTime = time.Unix(0, 0) // means none; the zero time does not
		}
		return gz, err
	}
}

// zstandard compresses best. Its window is 64 MiB, which is also the memory that unpacking takes; half of it would cost 2 %.
func zstandard(w io.Writer) (io.WriteCloser, error) {
	// One goroutine: with more, how they share the input would show in the output.
	return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(64<<20), zstd.WithEncoderConcurrency(1))
}

// archive writes the files as a tar archive to a file, compressed unless compress is nil. It does not depend on the machine's
// clock, users, umask or order of directories.
func archive(to string, list []file, mtime time.Time, compress compressor) (err error) {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if compress == nil {
		return writeTar(out, list, mtime)
	}
	w, err := compress(out)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(w, list, mtime), w.Close())
}

// writeTar writes the files and the directories above them, sorted by name. Directories have mode 0755, all have the time mtime.
// Two files of one name, and names that lead out of the tree, are errors.
func writeTar(w io.Writer, list []file, mtime time.Time) error {
	list = slices.SortedFunc(slices.Values(list), func(a, b file) int { return cmp.Compare(a.name, b.name) })
	tw := tar.NewWriter(w)
	written := map[string]bool{} // whether it is a directory
	for _, f := range list {
		if _, twice := written[f.name]; twice || !fs.ValidPath(f.name) {
			return fmt.Errorf("write tar: %q is no name of a file, or there twice", f.name)
		}
		for at, c := range f.name {
			dir := f.name[:at]
			isDir, there := written[dir]
			switch {
			case c != '/' || isDir:
				continue
			case there:
				return fmt.Errorf("write tar: %q is a file, and a directory above another", dir)
			}
			written[dir] = true
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: mtime}); err != nil {
				return fmt.Errorf("write tar: %s: %w", dir, err)
			}
		}
		written[f.name] = false
		if err := f.writeTo(tw, mtime); err != nil {
			return fmt.Errorf("write tar: %s: %w", f.name, err)
		}
	}
	return tw.Close()
}

func (f file) writeTo(tw *tar.Writer, mtime time.Time) error {
	if f.link != "" { // with the mode that Linux gives links
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: f.name, Linkname: f.link, Mode: 0o777, ModTime: mtime})
	}
	in, size, err := f.content()
	if err != nil {
		return err
	}
	defer in.Close()
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: size, Mode: int64(f.mode.Perm()), ModTime: mtime}); err != nil {
		return err
	}
	_, err = io.Copy(tw, in)
	return err
}
