// Package pluginlog writes a CNI plugin's log: one JSON object per line to stderr, to run_dir/plugin.log, and to the
// agent's datagram socket run_dir/log.sock while an agent listens.
//
// Many short-lived processes share the file. Each record is one write(2) on a descriptor opened with O_APPEND, so records
// never mix. Whichever process first finds the file full rotates it, under a lock that no one waits for. Logging never
// fails or delays the plugin: a destination that cannot be used is reported once on stderr, and the agent misses records
// while its socket is absent or full.
//
// Nothing is opened before the first record, so a program that logs nothing (VERSION) pays nothing.
package pluginlog

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/plugin/netconf"
)

const (
	// FileName is the log file's name in run_dir. Rotated files add ".1" (the newest) to ".3".
	FileName = "plugin.log"
	// DefaultMaxBytes is the file size at which the next record goes to a new file: 10 MiB.
	DefaultMaxBytes = 10 << 20
	// DefaultKeep is the number of rotated files that are kept.
	DefaultKeep = 3
	// MaxRecord is the size of the largest record in bytes, including the newline. It fits a default datagram
	// (net.core.wmem_default is 212992) and a reader's line buffer. [Open] says what becomes of a larger one.
	MaxRecord = netconf.MaxLogRecord
)

// Options say where records go. The zero value logs from info up to os.Stderr only.
type Options struct {
	// Level is the lowest level that is logged. Default: info.
	Level slog.Level
	// RunDir is the directory of the file and the socket. It is made with mode 0755 if necessary. Empty: stderr only.
	RunDir string
	// Stderr receives records and complaints. Default: os.Stderr.
	Stderr io.Writer
	// MaxBytes is the file size in bytes that triggers rotation. Default: DefaultMaxBytes.
	MaxBytes int64
	// Keep is the number of rotated files to keep. Default: DefaultKeep.
	Keep int
}

// Open returns a logger, and what closes its destinations. It always succeeds. A record above [MaxRecord] is replaced by
// one with its time, level and message, "truncated":true, its size in "bytes" and its first 8 KiB as a string in "record".
// After Close, records go to stderr only.
func Open(o Options) (*slog.Logger, io.Closer) {
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Keep <= 0 {
		o.Keep = DefaultKeep
	}
	s := &sink{stderr: o.Stderr}
	if o.RunDir != "" {
		file, socketPath := filepath.Join(o.RunDir, FileName), filepath.Join(o.RunDir, netconf.LogSocketName)
		s.destinations = []*destination{
			{what: "file", path: file, target: &rotated{path: file, maxBytes: o.MaxBytes, keep: o.Keep}},
			{what: "socket", path: socketPath, target: &socket{path: socketPath}},
		}
	}
	return slog.New(slog.NewJSONHandler(visible.JSON(s), &slog.HandlerOptions{Level: o.Level})), s
}

// sink passes one encoded record per Write (slog.JSONHandler promises that) to every destination.
type sink struct {
	stderr       io.Writer
	mu           sync.Mutex
	destinations []*destination
}

type destination struct {
	what, path string
	reported   bool
	target     interface {
		write(record []byte) error
		prepare() // opens it, if that works
		close()
	}
}

// Write always succeeds: the plugin has no use for the error.
func (s *sink) Write(record []byte) (int, error) {
	n := len(record)
	if n > MaxRecord {
		record = cut(record)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.destinations {
		if err := d.target.write(record); err != nil && !d.reported {
			d.reported = true
			slog.New(slog.NewJSONHandler(visible.JSON(s.stderr), nil)).Warn("log "+d.what+" cannot be used", "path", d.path, "error", err.Error())
		}
	}
	_, _ = s.stderr.Write(record) // last: it may be a pipe that nobody empties
	return n, nil
}

// Prepare opens the destinations, which the first record does otherwise. A plugin that has to wait for something else can do
// it meanwhile. What cannot be opened is reported with the first record.
func (s *sink) Prepare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.destinations {
		d.target.prepare()
	}
}

// Close implements io.Closer.
func (s *sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.destinations {
		d.target.close()
	}
	s.destinations = nil
	return nil
}

// cut makes a record of at most MaxRecord bytes from a larger one. Escaping may make its head six times as long, so 8 KiB
// of it always fit.
func cut(record []byte) []byte {
	const head, message = 8 << 10, 1 << 10
	var short struct {
		Time      time.Time `json:"time"`
		Level     string    `json:"level"`
		Msg       string    `json:"msg"`
		Truncated bool      `json:"truncated"`
		Bytes     int       `json:"bytes"`
		Record    string    `json:"record"`
	}
	_ = json.Unmarshal(record, &short) // slog wrote it; if it is no JSON after all, its head still tells
	short.Msg, short.Truncated, short.Bytes = prefix(short.Msg, message), true, len(record)
	short.Record = prefix(string(bytes.TrimSpace(record)), head)
	out, err := json.Marshal(short)
	if err != nil {
		return []byte("{\"level\":\"ERROR\",\"msg\":\"record too large\",\"truncated\":true}\n")
	}
	var visibly bytes.Buffer // what was decoded has the characters again
	_, _ = visible.JSON(&visibly).Write(append(out, '\n'))
	return visibly.Bytes()
}

// prefix is at most the first n bytes of s, without a broken character at the end.
func prefix(s string, n int) string {
	return strings.ToValidUTF8(s[:min(n, len(s))], "")
}
