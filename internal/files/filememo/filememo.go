// Package filememo remembers what is in the files of directories, and reads only those that are new or have changed.
package filememo

import (
	"errors"
	"io/fs"
	"path"
	"time"
)

// Memo remembers a value for each file. The zero Memo remembers none. It is not safe for concurrent use.
type Memo[T any] struct {
	known map[string]entry[T]
}

type entry[T any] struct {
	size    int64
	changed time.Time
	value   T
}

// Refresh looks at the files of the directories, as paths in fsys, and calls read with the path of each file that is new or
// has another size or time of modification than before. It returns the values by path. A directory that does not exist has
// no files. What cannot be read is in the error and has no value; the next Refresh tries it again.
func (m *Memo[T]) Refresh(fsys fs.FS, dirs []string, read func(name string) (T, error)) (map[string]T, error) {
	var errs []error
	known, values := map[string]entry[T]{}, map[string]T{}
	for _, dir := range dirs {
		files, err := fs.ReadDir(fsys, dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, f := range files {
			name := path.Join(dir, f.Name())
			info, err := f.Info()
			if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
				continue
			}
			e, same := entry[T]{}, false
			if err == nil {
				e, same = m.known[name]
				same = same && e.size == info.Size() && e.changed.Equal(info.ModTime())
			}
			if err == nil && !same {
				e = entry[T]{size: info.Size(), changed: info.ModTime()}
				e.value, err = read(name)
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			known[name], values[name] = e, e.value
		}
	}
	m.known = known
	return values, errors.Join(errs...)
}
