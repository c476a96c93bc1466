//go:build linux

package installer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// maxQueued bounds the bytes waiting to be printed.
const maxQueued = 4 << 20

// logSocket receives the plugins' records, one JSON object a datagram, and prints each as a line. A plugin never waits for
// that: a record that finds the queue full is counted and dropped.
type logSocket struct {
	path  string
	out   io.Writer
	m     *metrics
	queue chan []byte
	// unread is called when a plugin could not read its pod in time; nil: nobody is told.
	unread func()
	// decided is told of each decision; nil: nobody is. It is set before anything is received.
	decided func(Decision)
	queued  atomic.Int64
	conn    *net.UnixConn
	inode   os.FileInfo
	done    chan struct{}
}

// Decision is a plugin's log record of one ADD or CHECK on this node. See [plugin.Event].
type Decision struct {
	Pod                   status.ID
	Verb, Outcome, Reason string
	// Bypasses are at most eight codes of ways past the mesh.
	Bypasses []string
	// DefaultBypasses are those of them that are open only by what container runtimes grant to each container.
	DefaultBypasses []string
	// AddressFamilies are those of the pod's addresses.
	AddressFamilies []ruleset.Family
}

func newLogSocket(path string, out io.Writer, m *metrics) *logSocket {
	s := &logSocket{path: path, out: out, m: m, queue: make(chan []byte, 4096), done: make(chan struct{})}
	go s.print()
	return s
}

// ensure listens unless it does already, also after the run directory has been emptied.
func (s *logSocket) ensure() error {
	if info, err := os.Lstat(s.path); err == nil && s.conn != nil && os.SameFile(info, s.inode) {
		return nil
	}
	if s.conn != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
	// Bound under another name and made private there, so that it is never open to others and replaces a dead one at once.
	tmp := filepath.Join(filepath.Dir(s.path), "."+filepath.Base(s.path)+".new")
	_ = os.Remove(tmp)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: tmp, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("listening on %s: %w", s.path, err)
	}
	_ = conn.SetReadBuffer(1 << 20)
	if err = os.Chmod(tmp, 0o600); err == nil {
		err = os.Rename(tmp, s.path)
	}
	if err == nil {
		s.inode, err = os.Lstat(s.path)
	}
	if err != nil {
		_ = conn.Close()
		_ = os.Remove(tmp)
		return fmt.Errorf("listening on %s: %w", s.path, err)
	}
	s.conn = conn
	go s.receive(conn)
	return nil
}

// close stops listening, prints what is queued, and removes the socket.
func (s *logSocket) close() {
	if s.conn != nil {
		if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.inode) {
			_ = os.Remove(s.path)
		}
		_ = s.conn.Close()
	}
	s.queue <- nil
	<-s.done
}

func (s *logSocket) receive(conn *net.UnixConn) {
	buf := make([]byte, netconf.MaxLogRecord)
	for {
		n, _, flags, _, err := conn.ReadMsgUnix(buf, nil)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(10 * time.Millisecond) // no busy loop on a permanent error
		case flags&unix.MSG_TRUNC != 0:
			s.m.dropped.WithLabelValues("too-long").Inc()
		case n > 0:
			s.enqueue(bytes.Clone(buf[:n]))
		}
	}
}

func (s *logSocket) enqueue(record []byte) {
	if s.queued.Add(int64(len(record))) <= maxQueued {
		select {
		case s.queue <- record:
			return
		default:
		}
	}
	s.queued.Add(-int64(len(record)))
	s.m.dropped.WithLabelValues("queue-full").Inc()
}

func (s *logSocket) print() {
	defer close(s.done)
	for record := range s.queue {
		if record == nil {
			return
		}
		s.queued.Add(-int64(len(record)))
		line := s.account(record)
		_, _ = s.out.Write(append(line, '\n'))
	}
}

// tryAgain is the code of a pod that could not be read in time, for instance because the token is worthless: ErrTryAgainLater of
// github.com/containernetworking/cni/pkg/types.
const tryAgain = "11"

// maxBypasses bounds what one record can count; there are seven kinds.
const maxBypasses = 8

// account counts a record and returns the line to print.
func (s *logSocket) account(record []byte) []byte {
	var r struct {
		Level, Msg, Reason, Verb, Outcome string
		Pod, Namespace, UID, Error, Hint  string
		Bypasses                          []string
		DefaultBypasses                   []string `json:"default_bypasses"`
		AddressFamilies                   []string `json:"address_families"`
		Code                              json.RawMessage
		Duration                          *float64 `json:"duration_ms"`
	}
	var line bytes.Buffer
	if json.Compact(&line, record) != nil || json.Unmarshal(record, &r) != nil {
		s.m.records.WithLabelValues("malformed").Inc()
		return marshalLine(map[string]string{"level": "WARN", "msg": "a plugin sent no log record", "record": string(record)})
	}
	s.m.records.WithLabelValues(oneOf(logLevels, r.Level)).Inc()
	pod := status.ID{Namespace: r.Namespace, Name: r.Pod, UID: r.UID}
	switch r.Msg {
	case "failed":
		if string(r.Code) == tryAgain && s.unread != nil {
			s.unread()
		}
		code := oneOf(errorCodes, string(r.Code))
		s.m.failed.WithLabelValues(oneOf(failureVerbs, r.Verb), code).Inc()
		if r.Verb == "ADD" {
			s.m.failing.failed(pod, code, r.Reason, strings.TrimSuffix(r.Error+"; "+r.Hint, "; "))
		}
	case "decision":
		s.m.outcomes.WithLabelValues(oneOf(outcomeVerbs, r.Verb), oneOf(outcomes, r.Outcome)).Inc()
		s.m.decisions.WithLabelValues(s.m.reason(r.Reason)).Inc()
		if r.Verb == "ADD" && r.Outcome != "failed" {
			s.m.failing.started(pod)
		}
		for _, code := range r.Bypasses[:min(len(r.Bypasses), maxBypasses)] {
			s.m.bypasses.WithLabelValues(s.m.reason(code)).Inc()
		}
		if s.decided != nil {
			s.decided(Decision{
				Pod:  pod,
				Verb: r.Verb, Outcome: r.Outcome, Reason: r.Reason, Bypasses: r.Bypasses[:min(len(r.Bypasses), maxBypasses)],
				DefaultBypasses: r.DefaultBypasses[:min(len(r.DefaultBypasses), maxBypasses)],
				AddressFamilies: families(r.AddressFamilies),
			})
		}
		if r.Duration != nil && r.Verb == "ADD" {
			s.m.add.Observe(*r.Duration / 1000)
		}
	}
	return line.Bytes()
}

// families are those that a record names. What is none of them is left out.
func families(names []string) (found []ruleset.Family) {
	for _, f := range ruleset.Families {
		if slices.Contains(names, f.String()) {
			found = append(found, f)
		}
	}
	return found
}
