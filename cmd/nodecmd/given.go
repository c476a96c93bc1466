//go:build linux

package nodecmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/meshcni/meshcni/internal/diskfile"
)

// givenFile is the file in the run directory that names the agent to which the pods were given, until an agent of ours starts or
// is told to have them again. It is there before the first pod is given: an agent that is killed must not leave pods of another
// agent that look like its own.
const givenFile = "ambient.given"

// givenAway says to which agent the node's pods are given. The zero value: to none.
type givenAway struct {
	To string `json:"to"`
	// All is set once that agent has all of them.
	All bool `json:"all"`
}

func readGiven(runDir string) (g givenAway, err error) {
	text, err := os.ReadFile(filepath.Join(runDir, givenFile))
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
		return g, fmt.Errorf("learn to whom the pods were given, by %s: %w", filepath.Join(runDir, givenFile), err)
	}
	return g, nil
}

func (g givenAway) write(runDir string) error {
	path := filepath.Join(runDir, givenFile)
	if g.To == "" {
		return removeIfThere(path)
	}
	text, err := json.Marshal(g)
	if err != nil {
		return err
	}
	return diskfile.Write(path, append(text, '\n'), 0o600)
}
