//go:build linux

package installer

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/meshcni/meshcni/internal/files/diskfile"
)

// watcher wakes the agent when something may have changed. The agent then looks for itself, as it does periodically anyway.
// When inotify's limits are exhausted, the agent polls.
type watcher struct {
	log  *slog.Logger
	wake chan struct{}
	// relevant lists the files of a directory that matter. All files of a directory without an entry do.
	relevant map[string][]string

	fsw     *fsnotify.Watcher
	watched map[string]os.FileInfo
	broken  error
	retryAt time.Time
	newFS   func() (*fsnotify.Watcher, error)
}

func newWatcher(log *slog.Logger, relevant map[string][]string) *watcher {
	return &watcher{log: log, wake: make(chan struct{}, 1), relevant: relevant, newFS: fsnotify.NewWatcher}
}

func (w *watcher) close() {
	if w.fsw != nil {
		_ = w.fsw.Close()
		w.fsw = nil
	}
}

func (w *watcher) polling() bool { return w.broken != nil }

// arm watches the directories, and for a missing one its nearest parent that exists. Call it before looking at them, so that
// no change is missed.
func (w *watcher) arm(dirs []string) {
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
	if w.fsw != nil && len(w.fsw.WatchList()) == len(wanted) && maps.EqualFunc(w.watched, wanted, os.SameFile) {
		return
	}
	if w.broken != nil && time.Now().Before(w.retryAt) {
		return
	}
	// A watch follows the inode, and a name may mean another one by now: begin anew.
	w.close()
	fsw, err := w.newFS()
	if err != nil {
		w.fail(err)
		return
	}
	w.fsw, w.watched = fsw, wanted
	go w.forward(fsw)
	for dir := range wanted {
		if err := fsw.Add(dir); err != nil {
			if _, gone := os.Stat(dir); gone != nil {
				w.poke() // removed meanwhile: look again
				continue
			}
			w.fail(fmt.Errorf("watching %s: %w", dir, err))
			return
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
			names, some := w.relevant[filepath.Clean(dir)]
			if !diskfile.IsTemp(name) && (!some || slices.Contains(names, name)) {
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
