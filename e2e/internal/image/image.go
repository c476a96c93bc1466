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

	"golang.org/x/sys/unix"

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
	err = locked(func(dir string) error {
		program := filepath.Join(dir, "podtool")
		if err := command(filepath.Join(machine.Root(), "e2e"), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./cmd/podtool"); err != nil {
			return fmt.Errorf("build the test tool: %w", err)
		}
		text, err := os.ReadFile(program)
		if err != nil {
			return err
		}
		if err := Write(filepath.Join(dir, "podtool.new"), map[string][]byte{ToolPath[1:]: text}, []string{ToolPath}, Pause, Tool); err != nil {
			return err
		}
		return os.Rename(filepath.Join(dir, "podtool.new"), ToolArchive())
	})
	return ToolArchive(), err
}

// ToolArchive is where [Build] leaves its archive.
func ToolArchive() string { return machine.Cache("e2e", "podtool.tar") }

// The image of the checkout's programs, as [BuildOurs] calls it.
const (
	oursVersion = "v0.0.0-e2e"
	Ours        = "meshcni/meshcni:" + oursVersion
)

// OursArchive is where [BuildOurs] leaves its archive.
func OursArchive() string { return machine.Cache("e2e", "meshcni.tar") }

// BuildOurs builds the image of the checkout's programs as a release does, and
// returns the path of its archive.
func BuildOurs() (archive string, err error) {
	err = locked(func(dir string) error {
		out := filepath.Join(dir, "release")
		if err := os.RemoveAll(out); err != nil {
			return err
		}
		if err := command(machine.Root(), "go", "-C", "release", "run", ".", "image", "--arch", runtime.GOARCH, "--version", oursVersion, "--output", out); err != nil {
			return fmt.Errorf("build the image: %w", err)
		}
		found, err := filepath.Glob(filepath.Join(out, "*.docker.tar"))
		if err != nil {
			return err
		}
		if len(found) != 1 {
			return fmt.Errorf("build the image: %d archives, not one, in %s", len(found), out)
		}
		return os.Rename(found[0], OursArchive())
	})
	return OursArchive(), err
}

// locked calls fn with the directory for what is built, while no other process
// builds there: packages' tests run beside each other.
func locked(fn func(dir string) error) error {
	dir := machine.Cache("e2e")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return fn(dir)
}

// command runs a program, and is quiet when that succeeds.
func command(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
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
