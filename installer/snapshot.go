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

	"github.com/meshcni/meshcni/internal/files/diskfile"
)

const ciliumSuffix = ".cilium_bak" // Cilium with cni.exclusive=true renames every file but its own so

// ofInterest reports whether a plan depends on a file's content: a runtime loads it, or would under an earlier or later name
// (10-x.conflist.bak, 10-x.conf.NAME-saved).
func ofInterest(name string) bool {
	return (strings.Contains(name, ".conf") || strings.Contains(name, ".json")) && !diskfile.IsTemp(name)
}

// snapshot is a configuration directory at one time, so that a plan sees no changes. It lists files on which no plan depends
// without their content.
//
// What cannot be read has its error. errors.Is(err, fs.ErrNotExist) holds only if there is nothing on the host either; see
// [conflist.PassedOver].
type snapshot struct {
	dirs  map[string][]fs.DirEntry
	files map[string]snapshotFile
	// links are the other directories to which symbolic links lead.
	links []string
}

type snapshotFile struct {
	data []byte
	err  error
	// noConfig: it is a symbolic link that is not named like a configuration, so at most a list's directory of plugins.
	noConfig bool
}

// maxConfig bounds the size of a file that is read. Real ones have a few kilobytes, and containerd takes none above 2 MiB
// (github.com/containerd/go-cni, opts.go, MaxFileSize); CRI-O has no such bound.
const maxConfig = 4 << 20

// takeSnapshot reads dir. Its error is the directory's; those of the files are kept with them.
func takeSnapshot(dir string) (*snapshot, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	s := &snapshot{dirs: map[string][]fs.DirEntry{".": entries}, files: map[string]snapshotFile{}}
	in := sync.OnceValue(func() mounted { return mountOf(dir) }) // few directories have links
	for _, e := range entries {
		switch full, linked := filepath.Join(dir, e.Name()), e.Type()&fs.ModeSymlink != 0; {
		case !e.IsDir() && ofInterest(e.Name()):
			s.files[e.Name()] = s.read(in, full, linked)
		case e.IsDir() || linked:
			s.readPlugins(in, e.Name(), full, linked)
		}
	}
	return s, nil
}

// readPlugins reads a directory that may have the plugins of a list (CNI 1.1).
func (s *snapshot) readPlugins(in func() mounted, name, full string, linked bool) {
	var err error
	if linked {
		full, err = in().follow(full)
		if info, statErr := os.Stat(full); err == nil && (statErr != nil || !info.IsDir()) {
			return
		}
	}
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(full)
	}
	if err != nil {
		s.files[name] = snapshotFile{err: err, noConfig: linked}
		return
	}
	s.dirs[name] = entries
	for _, f := range entries {
		if path.Ext(f.Name()) == ".conf" && !f.IsDir() {
			s.files[path.Join(name, f.Name())] = s.read(in, filepath.Join(full, f.Name()), f.Type()&fs.ModeSymlink != 0)
		}
	}
}

// read returns the content of a file, wherever symbolic links lead.
func (s *snapshot) read(in func() mounted, full string, linked bool) snapshotFile {
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
	info, err := os.Stat(real) // before opening, which would block on a pipe
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
	return snapshotFile{data: data, err: err}
}

// ReadDir implements fs.ReadDirFS.
func (s *snapshot) ReadDir(name string) ([]fs.DirEntry, error) {
	if entries, ok := s.dirs[name]; ok {
		return entries, nil
	}
	return nil, s.missing("readdir", name)
}

// ReadFile implements fs.ReadFileFS. The caller must not change the bytes.
func (s *snapshot) ReadFile(name string) ([]byte, error) {
	if f, ok := s.files[name]; ok {
		return f.data, f.err
	}
	return nil, s.missing("read", name)
}

// Open implements fs.FS. It always fails: files are read through ReadDir and ReadFile.
func (s *snapshot) Open(name string) (fs.File, error) { return nil, s.missing("open", name) }

func (s *snapshot) missing(op, name string) error {
	err := fs.ErrNotExist
	if f, ok := s.files[name]; ok && f.err != nil {
		err = f.err
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// besideCilium reports whether a Cilium with cni.exclusive=true has been at the directory, by the names that it gives others' files.
func (s *snapshot) besideCilium() bool {
	for name := range s.files {
		if strings.HasSuffix(name, ciliumSuffix) {
			return true
		}
	}
	return false
}
