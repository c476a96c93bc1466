//go:build linux

package installer

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/meshcni/meshcni/installer/internal/diskfile"
)

// watcher wakes the agent when something may have changed. It promises no more than that: the agent looks for itself, and
// looks now and then anyhow. When inotify's limits are used up, it says so and looks often.
type watcher struct {
	log  *slog.Logger
	wake chan struct{}
	// relevant filters by directory; a directory without an entry is wholly relevant.
	relevant map[string]func(name string) bool

	fsw     *fsnotify.Watcher
	known   map[string]os.FileInfo
	broken  error
	retryAt time.Time
	newFS   func() (*fsnotify.Watcher, error)
}

func newWatcher(log *slog.Logger, relevant map[string]func(string) bool) *watcher {
	return &watcher{log: log, wake: make(chan struct{}, 1), relevant: relevant, known: map[string]os.FileInfo{}, newFS: fsnotify.NewWatcher}
}

func (w *watcher) close() {
	if w.fsw != nil {
		_ = w.fsw.Close()
		w.fsw = nil
	}
}

func (w *watcher) polling() bool { return w.broken != nil }

// arm sees to it that all the directories are watched: for one that is not there, the nearest one above it that is. To be
// called before looking at them, so that no change falls between.
func (w *watcher) arm(dirs []string) {
	if w.fsw == nil {
		if w.broken != nil && time.Now().Before(w.retryAt) {
			return
		}
		fsw, err := w.newFS()
		if err != nil {
			w.fail(err)
			return
		}
		w.fsw, w.known = fsw, map[string]os.FileInfo{}
		go w.forward(fsw)
	}
	wanted := map[string]os.FileInfo{}
	for _, dir := range dirs {
		for {
			info, err := os.Stat(dir)
			if err == nil && info.IsDir() {
				wanted[dir] = info
				break
			}
			if dir = filepath.Dir(dir); dir == "/" || dir == "." {
				break
			}
		}
	}
	listed := map[string]bool{}
	for _, dir := range w.fsw.WatchList() {
		listed[dir] = true
	}
	for dir, info := range wanted {
		if old, ok := w.known[dir]; ok && listed[dir] && os.SameFile(old, info) {
			continue
		}
		_ = w.fsw.Remove(dir) // a watch follows the inode; this name may mean another one now
		if err := w.fsw.Add(dir); err != nil {
			if _, gone := os.Stat(dir); gone != nil {
				w.poke() // gone since: look again
				continue
			}
			w.fail(fmt.Errorf("watching %s: %w", dir, err))
			return
		}
		w.known[dir] = info
	}
	for dir := range w.known {
		if _, ok := wanted[dir]; !ok {
			_ = w.fsw.Remove(dir)
			delete(w.known, dir)
		}
	}
	if w.broken != nil {
		w.log.Info("watching by inotify again")
		w.broken = nil
	}
}

func (w *watcher) fail(err error) {
	if w.broken == nil {
		w.log.Warn("cannot watch by inotify, so polling; raise fs.inotify.max_user_instances and max_user_watches", "error", err)
	}
	w.close()
	w.broken, w.retryAt = err, time.Now().Add(time.Minute)
}

func (w *watcher) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) forward(fsw *fsnotify.Watcher) {
	for {
		select {
		case ev, ok := <-fsw.Events:
			if !ok {
				return
			}
			dir, name := filepath.Split(ev.Name)
			relevant := w.relevant[filepath.Clean(dir)]
			if !diskfile.IsTemp(name) && (relevant == nil || relevant(name)) {
				w.poke()
			}
		case _, ok := <-fsw.Errors: // an overflow: something was missed
			if !ok {
				return
			}
			w.poke()
		}
	}
}
