// Package programs builds the module's programs for another architecture, so that only the sources, their stamp and the
// toolchain decide on the bytes.
package programs

import (
	"context"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meshcni/meshcni/release/internal/source"
)

// Names are the programs, as they are called in cmd/.
var Names = []string{"meshcni", "meshcni-node", "meshcni-redirect", "meshcni-repair", "meshcni-taint"}

// Arches are what they are released for, by Go's names, all for Linux.
var Arches = []string{"amd64", "arm64"}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// Program is one that was built.
type Program struct {
	Name string
	// Path is where the file is.
	Path string
	// Info is what the linker wrote into it of its modules.
	Info *buildinfo.BuildInfo
}

// Build builds all programs into the directory dir, which it makes. Paths of this machine, the user's settings of the go
// command and what git would tell are kept out; each program is then read back, and refused when it is not static, or was
// built with a setting that is not among those meant.
func Build(ctx context.Context, t source.Tree, arch, dir string) ([]Program, error) {
	if machines[arch] == 0 {
		return nil, fmt.Errorf("build for architecture %q: only %s are released", arch, strings.Join(Arches, " and "))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("build for %s: %w", arch, err)
	}
	variable := "-X " + source.Module + "/internal/version."
	flags := "-s -w -buildid= " + variable + "version=" + t.Version + " " + variable + "date=" + t.Time().Format(time.RFC3339)
	if t.Commit != "" {
		flags += " " + variable + "commit=" + t.Commit
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", dir + string(filepath.Separator)}
	for _, name := range Names {
		args = append(args, "./cmd/"+name)
	}
	cmd := Go(ctx, t, arch, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build for %s: %w\n%s", arch, err, out)
	}
	var built []Program
	for _, name := range Names {
		p := Program{Name: name, Path: filepath.Join(dir, name)}
		var err error
		if p.Info, err = buildinfo.ReadFile(p.Path); err != nil {
			return nil, fmt.Errorf("read back %s for %s: %w", name, arch, err)
		}
		if err := check(p, t, arch); err != nil {
			return nil, fmt.Errorf("built %s for %s: %w", name, arch, err)
		}
		built = append(built, p)
	}
	return built, nil
}

// Go is the go command in the tree's root, for Linux on the architecture, with the tree's toolchain. It works in the
// tree's workspace, since a tagged commit requires modules that are published only with it.
func Go(ctx context.Context, t source.Tree, arch string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = t.Root
	// Set, not unset: for what is not set the go command reads its own file of settings.
	cmd.Env = append(os.Environ(),
		"GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0", "GOTOOLCHAIN="+t.Go,
		"GOFLAGS=-mod=readonly", "GOWORK="+filepath.Join(t.Root, "go.work"), "GOFIPS140=off", "PWD="+t.Root)
	return cmd
}

// settings are those that a build may have recorded, and with which values. Experiments, other tags, a profile or a
// race detector would be one more.
var settings = map[string][]string{
	"-buildmode":     {"exe"},
	"-compiler":      {"gc"},
	"-trimpath":      {"true"},
	"CGO_ENABLED":    {"0"},
	"GOOS":           {"linux"},
	"GOARCH":         Arches,
	"GOAMD64":        {"v1"},
	"GOARM64":        {"v8.0"},
	"DefaultGODEBUG": nil, // from go.mod and the sources
}

func check(p Program, t source.Tree, arch string) error {
	if p.Info.GoVersion != t.Go {
		return fmt.Errorf("was built by %s, not %s", p.Info.GoVersion, t.Go)
	}
	for _, s := range p.Info.Settings {
		values, known := settings[s.Key]
		if !known || values != nil && !slices.Contains(values, s.Value) {
			return fmt.Errorf("was built with %s=%s, which others would not have", s.Key, s.Value)
		}
	}
	file, err := os.Open(p.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	f, err := elf.NewFile(file)
	if err != nil {
		return err
	}
	if f.Machine != machines[arch] {
		return fmt.Errorf("is for %s", f.Machine)
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP || s.Type == elf.PT_DYNAMIC {
			return fmt.Errorf("is not static: it has a segment %s", s.Type)
		}
	}
	return nil
}
