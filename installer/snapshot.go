//go:build linux

package installer

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/meshcni/meshcni/conflist"
)

const (
	savedSuffix  = ".meshcni-saved"
	ciliumSuffix = ".cilium_bak" // Cilium with cni.exclusive=true renames every file but its own so
)

// ofInterest tells whether a plan depends on a file's content.
func ofInterest(name string) bool {
	return conflist.IsConfigName(name) || strings.HasSuffix(name, savedSuffix) || strings.HasSuffix(name, ciliumSuffix)
}

// Snapshot is a configuration directory read at one time: an fs.FS of values, whose answers cannot change under a plan.
// Files that no plan depends on are listed without content.
type Snapshot struct {
	dirs  map[string][]fs.DirEntry
	files map[string]snapshotFile
	// links are the directories, other than this one, that symbolic links lead to.
	links []string
}

type snapshotFile struct {
	data []byte
	err  error
}

// maxConfig bounds what is read of one file. Real ones have a few kilobytes; the runtime would hardly load more.
const maxConfig = 4 << 20

// TakeSnapshot reads dir. Errors: the directory's; those of its files are theirs.
func TakeSnapshot(dir string) (*Snapshot, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{dirs: map[string][]fs.DirEntry{".": entries}, files: map[string]snapshotFile{}}
	for _, e := range entries {
		full := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir(): // perhaps plugins of a list (CNI 1.1)
			inner, err := os.ReadDir(full)
			if err != nil {
				s.files[e.Name()] = snapshotFile{err: err}
				continue
			}
			s.dirs[e.Name()] = inner
			for _, f := range inner {
				if path.Ext(f.Name()) == ".conf" && !f.IsDir() {
					s.files[path.Join(e.Name(), f.Name())] = readConfig(filepath.Join(full, f.Name()))
				}
			}
		case ofInterest(e.Name()):
			if e.Type()&fs.ModeSymlink != 0 {
				if real, err := filepath.EvalSymlinks(full); err == nil && filepath.Dir(real) != dir {
					s.links = append(s.links, filepath.Dir(real))
				}
			}
			s.files[e.Name()] = readConfig(full)
		}
	}
	return s, nil
}

func readConfig(path string) snapshotFile {
	info, err := os.Stat(path) // before opening, which would wait for the other end of a pipe
	switch {
	case err != nil:
		return snapshotFile{err: err}
	case !info.Mode().IsRegular():
		return snapshotFile{err: &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}}
	case info.Size() > maxConfig:
		return snapshotFile{err: &fs.PathError{Op: "read", Path: path, Err: errors.New("larger than 4 MiB")}}
	}
	data, err := os.ReadFile(path)
	return snapshotFile{data, err}
}

// ReadDir implements fs.ReadDirFS.
func (s *Snapshot) ReadDir(name string) ([]fs.DirEntry, error) {
	if entries, ok := s.dirs[name]; ok {
		return entries, nil
	}
	return nil, s.missing("readdir", name)
}

// ReadFile implements fs.ReadFileFS. The bytes are shared and not to be changed.
func (s *Snapshot) ReadFile(name string) ([]byte, error) {
	if f, ok := s.files[name]; ok {
		return f.data, f.err
	}
	return nil, s.missing("read", name)
}

// Open implements fs.FS for the sake of the interface; everything goes through ReadDir and ReadFile.
func (s *Snapshot) Open(name string) (fs.File, error) { return nil, s.missing("open", name) }

func (s *Snapshot) missing(op, name string) error {
	err := fs.ErrNotExist
	if f, ok := s.files[name]; ok && f.err != nil {
		err = f.err
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}
