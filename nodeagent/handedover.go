//go:build linux

package nodeagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/meshcni/meshcni/internal/files/diskfile"
)

// handedOverFile is the file in the run directory that names the agent to which the pods were given, until an agent of ours starts or
// is told to have them again. It is there before the first pod is given: an agent that is killed must not leave pods of another
// agent that look like its own.
const handedOverFile = "ambient.given"

// handedOver says to which agent the node's pods are given. The zero value: to none.
type handedOver struct {
	To string `json:"to"`
	// All is set once that agent has all of them.
	All bool `json:"all"`
}

func readHandedOver(runDir string) (g handedOver, err error) {
	text, err := os.ReadFile(filepath.Join(runDir, handedOverFile))
	if errors.Is(err, fs.ErrNotExist) {
		return g, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err == nil && g.To == "" {
		err = errors.New("it names no agent")
	}
	if err != nil {
		return g, fmt.Errorf("learn to whom the pods were given, by %s: %w", filepath.Join(runDir, handedOverFile), err)
	}
	return g, nil
}

func (g handedOver) write(runDir string) error {
	path := filepath.Join(runDir, handedOverFile)
	if g.To == "" {
		return removeIfThere(path)
	}
	text, err := json.Marshal(g)
	if err != nil {
		return err
	}
	return diskfile.Write(path, append(text, '\n'), 0o600)
}
