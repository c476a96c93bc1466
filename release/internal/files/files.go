// Package files holds trees of files as values and writes them as archives. An archive does not depend on the machine's
// clock, users, umask or order of directories.
package files

import (
	"archive/tar"
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
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// File is a regular file of a tree, or a link. All belong to root.
type File struct {
	// Name is its path in the tree, with slashes and none in front.
	Name string
	Mode fs.FileMode
	// Data is its content, unless Path is set: then it is a copy of that file on this machine.
	Data []byte
	Path string
	// Link makes it a symbolic link to that name, which has neither content nor mode.
	Link string
}

// Size is the length of the content, in bytes.
func (f File) Size() (int64, error) {
	if f.Path == "" {
		return int64(len(f.Data)), nil
	}
	st, err := os.Stat(f.Path)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func (f File) copy(w io.Writer) error {
	if f.Path == "" {
		_, err := w.Write(f.Data)
		return err
	}
	file, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(w, file)
	return err
}

// Digest is the SHA-256 of a file's content, in hexadecimal.
func Digest(path string) (string, error) {
	h := sha256.New()
	err := File{Path: path}.copy(h)
	return hex.EncodeToString(h.Sum(nil)), err
}

// Dir returns the files in a directory of this machine, with mode 0644.
func Dir(dir string) ([]File, error) {
	var list []File
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, File{Name: name, Mode: 0o644, Path: filepath.Join(dir, name)})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	return list, nil
}

// Below returns the files moved into a directory.
func Below(dir string, list []File) []File {
	moved := slices.Clone(list)
	for i := range moved {
		moved[i].Name = path.Join(dir, moved[i].Name)
	}
	return moved
}

// Compressor begins a compressed stream. Apart from [Plain] they are a module's, not the standard library's, so that go.mod
// decides on their version, whichever Go runs this.
type Compressor func(io.Writer) (io.WriteCloser, error)

// Plain does not compress.
func Plain(w io.Writer) (io.WriteCloser, error) { return nopCloser{w}, nil }

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// Gzip compresses with a level from 1 to 9. The header has no name and no time.
func Gzip(level int) Compressor {
	return func(w io.Writer) (io.WriteCloser, error) {
		gz, err := gzip.NewWriterLevel(w, level)
		if err != nil {
			return nil, err
		}
		gz.ModTime = time.Unix(0, 0) // means none; the zero time does not
		return gz, nil
	}
}

// Zstd compresses best. Its window is 32 MiB, which is also the memory that unpacking takes; twice as much would save 2 %.
func Zstd(w io.Writer) (io.WriteCloser, error) {
	// One goroutine: with more, how they share the input would show in the output.
	return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(32<<20), zstd.WithEncoderConcurrency(1))
}

// Archive writes the tar archive of [WriteTar], compressed, to a file. It returns the file's SHA-256 in hexadecimal.
func Archive(file string, list []File, mtime time.Time, compress Compressor) (digest string, err error) {
	out, err := os.Create(file)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	h := sha256.New()
	w, err := compress(io.MultiWriter(out, h))
	if err != nil {
		return "", err
	}
	err = errors.Join(WriteTar(w, list, mtime), w.Close())
	return hex.EncodeToString(h.Sum(nil)), err
}

// WriteTar writes the files and the directories above them, sorted by name. Directories have mode 0755, all have the time
// mtime. Two files of one name, and names that lead out of the tree, are errors.
func WriteTar(w io.Writer, list []File, mtime time.Time) error {
	list = slices.SortedFunc(slices.Values(list), func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	tw := tar.NewWriter(w)
	isDir := map[string]bool{} // of what is written
	for _, f := range list {
		if _, twice := isDir[f.Name]; twice || !fs.ValidPath(f.Name) {
			return fmt.Errorf("write tar: %q is no name of a file, or there twice", f.Name)
		}
		for at, c := range f.Name {
			dir := f.Name[:at]
			switch dirAlready, written := isDir[dir]; {
			case c != '/' || dirAlready:
				continue
			case written:
				return fmt.Errorf("write tar: %q is a file, and a directory above another", dir)
			}
			isDir[dir] = true
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: mtime}); err != nil {
				return fmt.Errorf("write tar: %s: %w", dir, err)
			}
		}
		isDir[f.Name] = false
		if err := writeFile(tw, f, mtime); err != nil {
			return fmt.Errorf("write tar: %s: %w", f.Name, err)
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("write tar: %w", err)
	}
	return nil
}

func writeFile(tw *tar.Writer, f File, mtime time.Time) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	h := tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Size: size, Mode: int64(f.Mode.Perm()), ModTime: mtime}
	if f.Link != "" {
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777 // as Linux has them
	}
	if err := tw.WriteHeader(&h); err != nil {
		return err
	}
	return f.copy(tw)
}

// WriteDir writes the files below the directory dir, which it makes, with the modes that [WriteTar] gives, whatever the
// umask. They belong to whoever runs it.
func WriteDir(dir string, list []File) error {
	defer syscall.Umask(syscall.Umask(0))
	for _, f := range list {
		if err := writeTo(dir, f); err != nil {
			return fmt.Errorf("write %s: %w", f.Name, err)
		}
	}
	return nil
}

func writeTo(dir string, f File) (err error) {
	if !fs.ValidPath(f.Name) {
		return fs.ErrInvalid
	}
	to := filepath.Join(dir, f.Name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if f.Link != "" {
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.Symlink(f.Link, to)
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	return errors.Join(out.Chmod(f.Mode.Perm()), f.copy(out))
}
