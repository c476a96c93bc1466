// Package files holds trees of files as values and writes them as tar archives that depend on nothing else: not on the
// machine's clock, users, umask or order of directories.
package files

import (
	"archive/tar"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// File is one regular file of a tree. All belong to root.
type File struct {
	// Name is its path in the tree: with slashes, and none in front.
	Name string
	// Mode is its permissions.
	Mode fs.FileMode
	// Data is what is in it, unless Path is set.
	Data []byte
	// Path is the file on this machine that it is a copy of.
	Path string
}

// Size is how long the content is, in bytes.
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

// copy writes the content.
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

// Dir returns what is in a directory of this machine, with mode 0644.
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

// WriteTar writes the files and the directories above them, sorted by name. Directories have mode 0755, all have the time
// mtime. Two files of one name, and names that lead out of the tree, are errors.
func WriteTar(w io.Writer, list []File, mtime time.Time) error {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	tw := tar.NewWriter(w)
	dirs, names := map[string]bool{}, map[string]bool{}
	for _, f := range list {
		if !fs.ValidPath(f.Name) || names[f.Name] {
			return fmt.Errorf("write tar: %q is no name of a file, or there twice", f.Name)
		}
		names[f.Name] = true
	}
	for _, f := range list {
		for at, c := range f.Name {
			dir := f.Name[:at]
			if c != '/' || dirs[dir] {
				continue
			}
			if names[dir] {
				return fmt.Errorf("write tar: %q is a file, and a directory above another", dir)
			}
			dirs[dir] = true
			h := tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: mtime}
			if err := tw.WriteHeader(&h); err != nil {
				return fmt.Errorf("write tar: %s: %w", dir, err)
			}
		}
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
	if err := tw.WriteHeader(&h); err != nil {
		return err
	}
	return f.copy(tw)
}

// WriteDir writes the files below the directory dir, which it makes, with the modes that [WriteTar] gives, whatever the
// umask; they belong to whoever runs it.
func WriteDir(dir string, list []File) error {
	for _, f := range list {
		if err := writeTo(dir, f); err != nil {
			return fmt.Errorf("write %s: %w", f.Name, err)
		}
	}
	return nil
}

func writeTo(dir string, f File) error {
	if !fs.ValidPath(f.Name) {
		return fs.ErrInvalid
	}
	if err := os.MkdirAll(filepath.Join(dir, path.Dir(f.Name)), 0o755); err != nil {
		return err
	}
	for at := path.Dir(f.Name); at != "."; at = path.Dir(at) {
		if err := os.Chmod(filepath.Join(dir, at), 0o755); err != nil {
			return err
		}
	}
	to := filepath.Join(dir, f.Name)
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	err = f.copy(out)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Chmod(to, f.Mode.Perm())
}
