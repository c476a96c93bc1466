// Package preinstalled is the plugin as the container runtime starts it at its own start, before any pod, at its own hook (NRI): it captures the pods
// of the meshes that nobody else has captured, or refuses their containers, whether or not the node's agent is there. The agent puts the
// program and its settings into the runtime's directory, and takes both back.
package preinstalled

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/hook"
	"github.com/meshcni/meshcni/internal/node/hookfile"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/program/memory"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/status"
)

const (
	// socketVariable has the number of the open connection to the runtime that has started the process.
	socketVariable = "NRI_PLUGIN_SOCKET"
	// lookEvery is the interval at which it is looked whether the settings have gone: then an uninstall has run.
	lookEvery = 200 * time.Millisecond
	// heap is the soft limit of the process's heap, in bytes.
	heap = 8 << 20
)

// Exec does nothing in a process that no container runtime has started by itself. In one that has been, it is the plugin until the runtime ends, or
// the settings beside the program go, and then exits: it does not return. Call it before [plugin.Plugin.Exec].
func Exec(p plugin.Plugin) {
	socket, started := os.LookupEnv(socketVariable)
	if !started || os.Getenv("CNI_COMMAND") != "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(heap)
	err := run(ctx, p, socket, filepath.Dir(os.Args[0]))
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run is the plugin at the connection of that number, with the settings in a runtime's directory, until the context or the connection ends.
func run(ctx context.Context, p plugin.Plugin, socket, dir string) error {
	number, err := strconv.ParseUint(socket, 10, 31)
	if err != nil {
		return fmt.Errorf("%s=%q: no open file's number", socketVariable, socket)
	}
	file := os.NewFile(uintptr(number), "the runtime's connection")
	conn, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		return fmt.Errorf("the container runtime's connection: %w", err)
	}
	p.Identity = p.Identity.WithDefaults()
	now := &settings{path: hookfile.In(dir, p.Identity.Plugin).Settings, plugin: p}
	if err := now.read(); err != nil {
		return errors.Join(err, conn.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go now.watch(ctx, cancel)
	go memory.Regularly(ctx)
	log := slog.New(lateLog{open: func() (*slog.Logger, io.Closer) { return plugin.OpenLog(now.config(), io.Discard) }})
	mode := hook.Capture
	if now.gate {
		mode = hook.Gate
	}
	return hook.New(hook.Options{
		Conn: conn, Mode: mode, Plugin: p, Config: now.config, Log: log,
		Inventory: inventory.New(inventory.Options{Records: attachment.Open(now.config().RunDir)}),
		Held: func(id status.ID, why string) {
			log.Error("the containers of a pod are refused at the container runtime's hook", "namespace", id.Namespace, "pod", id.Name, "error", why)
		},
	}).Run(ctx)
}

// settings are those that were last read well.
type settings struct {
	path   string
	plugin plugin.Plugin
	gate   bool // counts at the start only: the runtime does not start the process anew

	mu      sync.Mutex
	present netconf.Config
}

// read reads the file. After an error the settings are as before.
func (s *settings) read() error {
	text, err := os.ReadFile(s.path)
	if err != nil {
		return fmt.Errorf("the settings of the plugin as the runtime starts it: %w", err)
	}
	var file hookfile.Settings
	err = json.Unmarshal(text, &file)
	var c netconf.Config
	if err == nil {
		c, _, err = netconf.Parse(file.Entry, s.plugin.Identity)
	}
	if err != nil {
		return fmt.Errorf("the settings in %s: %w", s.path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present, s.gate = c, file.Gate
	return nil
}

// config returns the present settings.
func (s *settings) config() netconf.Config {
	_ = s.read() // it may be of a newer version, which this process cannot read: what it has read holds
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present
}

// watch ends the process's work once the file has gone.
func (s *settings) watch(ctx context.Context, end func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
		}
		if _, err := os.Lstat(s.path); errors.Is(err, fs.ErrNotExist) {
			end()
			return
		}
	}
}

// lateLog opens the plugin's log for each record: a process that begins at a boot is there before the directory and the agent are.
type lateLog struct {
	open  func() (*slog.Logger, io.Closer)
	attrs []slog.Attr
}

func (l lateLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (l lateLog) Handle(ctx context.Context, r slog.Record) error {
	log, closer := l.open()
	return errors.Join(log.Handler().WithAttrs(l.attrs).Handle(ctx, r), closer.Close())
}

func (l lateLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	l.attrs = append(l.attrs[:len(l.attrs):len(l.attrs)], attrs...)
	return l
}

func (l lateLog) WithGroup(string) slog.Handler { return l }
