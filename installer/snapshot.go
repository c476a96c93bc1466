//go:build linux

package installer

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/meshcni/meshcni/installer/internal/diskfile"
)

const (
	savedSuffix  = ".meshcni-saved"
	ciliumSuffix = ".cilium_bak" // Cilium with cni.exclusive=true renames every file but its own so
)

// ofInterest tells whether a plan depends on a file's content: a runtime loads it, or would under an earlier or later name
// (10-x.conflist.bak, 10-x.conf.meshcni-saved).
func ofInterest(name string) bool {
	return (strings.Contains(name, ".conf") || strings.Contains(name, ".json")) && !diskfile.IsTemp(name)
}

// Snapshot is a configuration directory read at one time: an fs.FS of values, whose answers cannot change under a plan.
// Files that no plan depends on are listed without content.
//
// What could not be read has its error, of which errors.Is(err, fs.ErrNotExist) holds only when there is nothing on the
// host either: see [conflist.PassedOver].
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

// maxConfig bounds what is read of one file. Real ones have a few kilobytes, and containerd takes none above 2 MiB
// (github.com/containerd/go-cni, opts.go, MaxFileSize); CRI-O has no such bound.
const maxConfig = 4 << 20

// TakeSnapshot reads dir. Errors: the directory's; those of its files are theirs.
func TakeSnapshot(dir string) (*Snapshot, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{dirs: map[string][]fs.DirEntry{".": entries}, files: map[string]snapshotFile{}}
	in := sync.OnceValue(func() mounted { return mountOf(dir) }) // few directories have links
	for _, e := range entries {
		full, linked := filepath.Join(dir, e.Name()), e.Type()&fs.ModeSymlink != 0
		if !e.IsDir() && ofInterest(e.Name()) {
			s.files[e.Name()] = s.read(in, full, linked)
			continue
		}
		var err error // of this entry alone
		if linked {
			full, err = in().follow(full)
			if info, statErr := os.Stat(full); err == nil && (statErr != nil || !info.IsDir()) {
				continue
			}
		}
		if !e.IsDir() && !linked {
			continue
		}
		// Perhaps plugins of a list (CNI 1.1).
		var inner []fs.DirEntry
		if err == nil {
			inner, err = os.ReadDir(full)
		}
		if err != nil {
			s.files[e.Name()] = snapshotFile{err: err}
			continue
		}
		s.dirs[e.Name()] = inner
		for _, f := range inner {
			if path.Ext(f.Name()) == ".conf" && !f.IsDir() {
				s.files[path.Join(e.Name(), f.Name())] = s.read(in, filepath.Join(full, f.Name()), f.Type()&fs.ModeSymlink != 0)
			}
		}
	}
	return s, nil
}

// read is the content of a file, wherever symbolic links lead to it.
func (s *Snapshot) read(in func() mounted, full string, linked bool) snapshotFile {
	real := full
	if linked {
		var err error
		if real, err = in().follow(full); err != nil {
			return snapshotFile{err: err}
		}
	}
	if real == os.DevNull { // masked by a link to it: as good as empty
		return snapshotFile{data: []byte{}}
	}
	info, err := os.Stat(real) // before opening, which would wait for the other end of a pipe
	switch {
	case err != nil:
		return snapshotFile{err: err}
	case !info.Mode().IsRegular():
		return snapshotFile{err: &fs.PathError{Op: "read", Path: full, Err: errors.New("not a regular file")}}
	case info.Size() > maxConfig:
		return snapshotFile{err: &fs.PathError{Op: "read", Path: full, Err: errors.New("larger than 4 MiB")}}
	}
	if dir := filepath.Dir(real); linked && dir != in().dir {
		s.links = append(s.links, dir)
	}
	data, err := os.ReadFile(real)
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
