// Package image builds the images that the pods of tests run, as docker-archives that containerd imports. It needs neither
// a registry nor a daemon.
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

	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// The images of the test tool, cmd/podtool. Without arguments the tool waits, as a sandbox's pause container does.
const (
	Pause = "localhost/meshcni-e2e/pause:1"
	Tool  = "localhost/meshcni-e2e/podtool:1"
)

// ToolPath is the program's path in [Tool].
const ToolPath = "/podtool"

// Ours is the image of the checkout's programs, under the name of one that is imported and in no registry.
const Ours = Registry + "/meshcni/meshcni:" + oursVersion

// Registry is what the chart and the manifests want to hear of such an image.
const Registry = "localhost"

const oursVersion = "v0.0.0-e2e"

// ToolProgram is the test tool itself, as [Build] makes it.
func ToolProgram() string { return proctest.Cache("e2e", "podtool") }

// ToolArchive is the archive of [Pause] and [Tool] that [Build] makes.
func ToolArchive() string { return proctest.Cache("e2e", "podtool.tar") }

// OursArchive is the archive of [Ours] that [Build] makes.
func OursArchive() string { return proctest.Cache("e2e", "meshcni.tar") }

// KubectlPlugin is the checkout's kubectl-meshcni, as [Build] makes it; kubectl-meshcni-migrate is beside it.
func KubectlPlugin() string { return proctest.Cache("e2e", "kubectl-meshcni") }

// Acme is the image of examples/mesh, and AcmeArchive its archive that [Build] makes.
const Acme = Registry + "/acme/acme:" + oursVersion

func AcmeArchive() string { return proctest.Cache("e2e", "acme.tar") }

// Build builds all images: the test tool's, and the checkout's as a release does it; the kubectl plugin; and the image of the template. Only one process builds at a time.
func Build() error { return BuildTelling(func(string) {}) }

// BuildTool builds the test tool's images alone.
func BuildTool() error { return locked(func(string) error { return nil }, func(string) {}) }

// BuildTelling is [Build] that tells what it begins to build.
func BuildTelling(progress func(what string)) error {
	return locked(func(dir string) error { return buildRest(dir, progress) }, progress)
}

// locked builds the test tool's images, and then more, while no other process builds.
func locked(more func(dir string) error, progress func(what string)) error {
	dir := proctest.Cache("e2e")
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
	progress("the image of the pods' test tool")
	if err := buildTool(dir); err != nil {
		return fmt.Errorf("build the test tool: %w", err)
	}
	return more(dir)
}

func buildRest(dir string, progress func(what string)) error {
	progress("the checkout's image")
	if err := buildOurs(dir); err != nil {
		return fmt.Errorf("build the image: %w", err)
	}
	progress("kubectl meshcni")
	if err := run("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Dir(KubectlPlugin()), "./cmd/kubectl-meshcni", "./migrate/kubectl-meshcni-migrate"); err != nil {
		return fmt.Errorf("build the kubectl plugin: %w", err)
	}
	if err := buildAcme(dir); err != nil {
		return fmt.Errorf("build the image of examples/mesh: %w", err)
	}
	return nil
}

func buildTool(dir string) error {
	program := filepath.Join(dir, "podtool")
	if err := run("go", "-C", "e2e", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./cmd/podtool"); err != nil {
		return err
	}
	return writeArchive(ToolArchive(), []string{Pause, Tool}, ToolPath, map[string]string{ToolPath: program})
}

// buildAcme builds what the Dockerfile of the template does.
func buildAcme(dir string) error {
	bin := filepath.Join(dir, "acme")
	if err := run("go", "-C", "examples", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin+"/", "./mesh/cmd/acme-cni", "./mesh/cmd/acme-node"); err != nil {
		return err
	}
	const agent = "/usr/local/bin/acme-node"
	return writeArchive(AcmeArchive(), []string{Acme}, agent, map[string]string{
		"/opt/acme/bin/acme-cni": filepath.Join(bin, "acme-cni"), agent: filepath.Join(bin, "acme-node"),
	})
}

func buildOurs(dir string) error {
	out := filepath.Join(dir, "release")
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := run("go", "-C", "release", "run", ".", "image", "--arch", runtime.GOARCH, "--version", oursVersion, "--output", out); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(out, "*.docker.tar"))
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("%d archives, not one, in %s", len(found), out)
	}
	return os.Rename(found[0], OursArchive())
}

// run runs a program in the root of the repository. Its output is in the error only.
func run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = proctest.Root()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// file is a file of an archive.
type file struct {
	name string
	mode int64
	text []byte
}

// writeArchive writes a docker-archive of one image, under all of its names, with these programs.
func writeArchive(path string, names []string, entrypoint string, programs map[string]string) error {
	var files []file
	for at, program := range programs {
		text, err := os.ReadFile(program)
		if err != nil {
			return err
		}
		files = append(files, file{at[1:], 0o755, text})
	}
	layer, err := tarball(files...)
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{entrypoint}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": names, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	archive, err := tarball(file{"config.json", 0o644, config}, file{"layer.tar", 0o644, layer}, file{"manifest.json", 0o644, manifest})
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", archive, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func tarball(files ...file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.text))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
