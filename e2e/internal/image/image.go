// Package image makes the small images that the pods of tests run: one layer with
// a few files, as a docker-archive that containerd imports. No registry, no daemon.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// The images that [Build] makes. Both are the test tool, cmd/podtool: without
// arguments it waits, as a sandbox's pause container does.
const (
	Pause = "localhost/meshcni-e2e/pause:1"
	Tool  = "localhost/meshcni-e2e/podtool:1"
)

// ToolPath is where the program is in [Tool].
const ToolPath = "/podtool"

// Build builds the test tool and returns the path of an archive with both images.
func Build() (archive string, err error) {
	dir := machine.Cache("e2e")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	program := filepath.Join(dir, "podtool")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./cmd/podtool")
	cmd.Dir = filepath.Join(machine.Root(), "e2e")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the test tool: %w\n%s", err, out)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	archive = filepath.Join(dir, "podtool.tar")
	return archive, Write(archive, map[string][]byte{ToolPath[1:]: text}, []string{ToolPath}, Pause, Tool)
}

// Write writes an archive with one image under some names: files, which can all be
// executed, and the program that a container of it runs.
func Write(path string, files map[string][]byte, entrypoint []string, names ...string) error {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for name, text := range files {
		if err := add(w, name, text, 0o755); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer.Bytes()))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": names, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w = tar.NewWriter(&archive)
	for _, f := range []struct {
		name string
		text []byte
	}{{"config.json", config}, {"layer.tar", layer.Bytes()}, {"manifest.json", manifest}} {
		if err := add(w, f.name, f.text, 0o644); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, archive.Bytes(), 0o600)
}

func add(w *tar.Writer, name string, text []byte, mode int64) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(text))}); err != nil {
		return err
	}
	_, err := w.Write(text)
	return err
}
