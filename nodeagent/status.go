//go:build linux

package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/meshcni/meshcni/internal/files/diskfile"
	"github.com/meshcni/meshcni/status"
)

// statusFile is the file in the run directory in which a running agent says how its node is. Only root reads it: it has names
// of pods.
const statusFile = "status.json"

const (
	// statusEvery is the interval at which the agent looks whether its status has changed, statusAnew that at which it writes the same again, so
	// that its time tells that the agent lives.
	statusEvery, statusAnew = time.Second, 10 * time.Second
	// statusSoon bounds how long a command waits for an agent that is slow to look. Then it shows what there is.
	statusSoon = 5 * statusEvery
	// statusOld is the age from which on the file's writer counts as gone.
	statusOld = 3 * statusAnew
)

// Status is the state of a node, as the agent's file status.json and "status -o json" have it.
type Status struct {
	// Time is that of the look.
	Time time.Time `json:"time"`
	Node string    `json:"node"`
	// Alone: nothing is in the node's network, and pods are captured at the container runtime's hook. Default: false.
	Alone bool `json:"alone,omitempty"`
	// Ready: every new pod of the node will be captured. Otherwise News has the reasons, of [status.KindReadiness].
	Ready bool `json:"ready"`
	// News lists all that people should know.
	News []status.News `json:"news,omitempty"`
	// Pods are the node's in the mesh that have a network, and those that its proxy has or is to have.
	Pods []status.Pod `json:"pods"`
}

// statusWriter keeps the status file.
type statusWriter struct {
	path string
	now  func() Status
	log  *slog.Logger
}

// run writes the file until the context ends, and then takes it away, unless another agent has written it since.
func (r statusWriter) run(ctx context.Context) error {
	var last Status
	var wrote os.FileInfo
	said := ""
	for ctx.Err() == nil {
		asked := time.Now()
		s := r.now()
		is, _ := os.Lstat(r.path)
		same := s
		same.Time = last.Time
		if is == nil || wrote == nil || s.Time.Sub(last.Time) >= statusAnew || !reflect.DeepEqual(same, last) {
			var err error
			// The agent's loop makes the directory.
			if wrote, err = r.write(s); err != nil && !errors.Is(err, fs.ErrNotExist) && err.Error() != said {
				said = err.Error()
				r.log.Warn("the status file cannot be written", "path", r.path, "error", said)
			}
			last = s
		}
		// What is there was so at this time, though it may be older: see [ReadStatus]. That is true only of what this agent has
		// written: not if it could not, and not of the file of an agent that takes its place.
		if is, err := os.Lstat(r.path); err == nil && wrote != nil && os.SameFile(is, wrote) {
			_ = os.Chtimes(r.path, asked, asked)
		}
		select {
		case <-ctx.Done():
		case <-time.After(statusEvery):
		}
	}
	if is, err := os.Lstat(r.path); err == nil && wrote != nil && os.SameFile(is, wrote) {
		_ = os.Remove(r.path)
	}
	return nil
}

func (r statusWriter) write(s Status) (os.FileInfo, error) {
	text, err := json.Marshal(s)
	if err == nil {
		err = diskfile.Write(r.path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return nil, err
	}
	return os.Lstat(r.path)
}

// ReadStatus returns what the agent of a run directory has written last. It needs no API server and no running container. The status
// is that of the time of the call or later, if the agent tells it soon: whoever has seen an effect of the agent's, such as an annotation,
// and then asks, must not be told what was before.
func ReadStatus(ctx context.Context, runDir string) (Status, error) {
	path, called := filepath.Join(runDir, statusFile), time.Now()
	for {
		is, err := os.Stat(path)
		s, failed := readStatus(path, time.Now())
		if failed != nil || err == nil && !is.ModTime().Before(called) || time.Since(called) > statusSoon {
			return s, failed
		}
		select {
		case <-ctx.Done():
			return s, nil
		case <-time.After(statusEvery / 20):
		}
	}
}

func readStatus(path string, now time.Time) (s Status, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("no agent has written its status: is it running on this node? %w", err)
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("read the agent's status: %w", err)
	}
	if age := now.Sub(s.Time).Round(time.Second); age > statusOld {
		return s, fmt.Errorf("the agent's status in %s is %s old: the agent is gone, or hangs", path, age)
	}
	return s, nil
}
