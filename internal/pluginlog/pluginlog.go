// Package pluginlog is where a CNI plugin's log records go: as one JSON object a line to stderr, to
// run_dir/plugin.log, and to the agent's datagram socket run_dir/log.sock while an agent listens.
//
// Many short-lived processes write the same file at once. Each record is one write(2) on a descriptor opened with
// O_APPEND, so records never mix; the file is rotated by whichever process first finds it full, under a lock that no
// one waits for. Nothing here fails or delays the plugin: a destination that cannot be used is reported once on
// stderr, and a socket that is absent or full costs the agent a record, not the pod its start.
//
// Nothing is opened before the first record, so a program that logs nothing (VERSION) pays nothing.
package pluginlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Names and defaults.
const (
	// FileName is the log file's name inside Options.RunDir; rotated files add ".1" (newest) to ".3".
	FileName = "plugin.log"
	// SocketName is the name of the agent's unixgram socket inside Options.RunDir. One datagram is one record.
	SocketName = "log.sock"
	// DefaultMaxBytes is the file size from which the next record goes to a new file: 10 MiB.
	DefaultMaxBytes = 10 << 20
	// DefaultKeep is the number of rotated files that are kept.
	DefaultKeep = 3
	// MaxRecord is the size of the largest record in bytes, newline included. It fits a default datagram
	// (net.core.wmem_default is 212992) and a reader's line buffer. A larger record is cut: see [Open].
	MaxRecord = 64 << 10
)

// Options say where records go. The zero value logs from info up to os.Stderr only.
type Options struct {
	// Level is the least level that is logged; the zero value is info.
	Level slog.Level
	// RunDir is the directory of the file and the socket, made with mode 0755 when absent. Empty: stderr only.
	RunDir string
	// Stderr is where records and complaints go; nil is os.Stderr.
	Stderr io.Writer
	// MaxBytes is the size in bytes from which the file is rotated; 0 is DefaultMaxBytes.
	MaxBytes int64
	// Keep is the number of rotated files to keep; 0 is DefaultKeep.
	Keep int
}

// Open returns a logger on the destinations of o, and what closes them. It always succeeds. A record above [MaxRecord]
// is replaced by one with its time, level and message, "truncated":true, its size in "bytes" and its first 8 KiB
// as a string in "record". After Close, records go to stderr only.
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
		s.file = &rotated{path: filepath.Join(o.RunDir, FileName), maxBytes: o.MaxBytes, keep: o.Keep}
		s.socket = &socket{path: filepath.Join(o.RunDir, SocketName)}
	}
	return slog.New(slog.NewJSONHandler(s, &slog.HandlerOptions{Level: o.Level})), s
}

// ParseLevel reads debug, info, warn or error, in any case; empty is info. The error names the value.
func ParseLevel(text string) (slog.Level, error) {
	switch strings.ToLower(text) {
	case "debug":
		return slog.LevelDebug, nil
	case "", "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return slog.LevelInfo, fmt.Errorf("log level %q: allowed are debug, info, warn, error", text)
}

// sink takes one encoded record per Write (slog.JSONHandler promises that) to every destination.
type sink struct {
	stderr io.Writer

	mu       sync.Mutex
	file     *rotated // nil: none
	socket   *socket  // nil: none
	reported map[string]bool
}

// Write always succeeds: the plugin has no use for the error.
func (s *sink) Write(record []byte) (int, error) {
	n := len(record)
	if n > MaxRecord {
		record = cut(record)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Stderr last: it may be a pipe that nobody empties.
	if s.file != nil {
		s.report("file", s.file.path, s.file.write(record))
	}
	if s.socket != nil {
		s.report("socket", s.socket.path, s.socket.send(record))
	}
	_, _ = s.stderr.Write(record)
	return n, nil
}

// report says once for each destination that it cannot be used.
func (s *sink) report(what, path string, err error) {
	if err == nil || s.reported[what] {
		return
	}
	if s.reported == nil {
		s.reported = map[string]bool{}
	}
	s.reported[what] = true
	slog.New(slog.NewJSONHandler(s.stderr, nil)).Warn("log "+what+" cannot be used", "path", path, "error", err.Error())
}

// Close implements io.Closer.
func (s *sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		s.file.close()
	}
	if s.socket != nil {
		s.socket.close()
	}
	s.file, s.socket = nil, nil
	return nil
}

// cut makes a record of at most MaxRecord bytes from a larger one. The head may grow sixfold when escaped, so 8 KiB of
// it is what surely fits.
func cut(record []byte) []byte {
	const head, message = 8 << 10, 1 << 10
	var from struct {
		Time  time.Time `json:"time"`
		Level string    `json:"level"`
		Msg   string    `json:"msg"`
	}
	_ = json.Unmarshal(record, &from) // slog wrote it; if it is no JSON after all, its head still tells
	out, err := json.Marshal(struct {
		Time      time.Time `json:"time"`
		Level     string    `json:"level"`
		Msg       string    `json:"msg"`
		Truncated bool      `json:"truncated"`
		Bytes     int       `json:"bytes"`
		Record    string    `json:"record"`
	}{from.Time, from.Level, prefix(from.Msg, message), true, len(record), prefix(string(bytes.TrimSpace(record)), head)})
	if err != nil {
		return []byte("{\"level\":\"ERROR\",\"msg\":\"record too large\",\"truncated\":true}\n")
	}
	return append(out, '\n')
}

// prefix is at most the first n bytes of s, without a broken character at the end.
func prefix(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
