// Package programs builds the module's programs for another architecture, so that only the sources, their stamp and the
// toolchain decide on the bytes.
package programs

import (
	"context"
	"debug/buildinfo"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meshcni/meshcni/release/internal/source"
)

// Names are the programs of a node, as they are called in cmd/.
var Names = []string{"meshcni", "meshcni-node", "meshcni-redirect", "meshcni-repair", "meshcni-taint"}

// Plugin is the program for people's own machines.
const Plugin = "kubectl-meshcni"

// Arches are what all are released for, by Go's names; those of a node for Linux only.
var Arches = []string{"amd64", "arm64"}

// Systems are what the plugin is released for, by Go's names.
var Systems = []string{"darwin", "linux", "windows"}

// Platform is what a program is built for.
type Platform struct{ OS, Arch string }

// PluginPlatforms returns what the plugin is released for.
func PluginPlatforms() (all []Platform) {
	for _, system := range Systems {
		for _, arch := range Arches {
			all = append(all, Platform{system, arch})
		}
	}
	return all
}

// MarshalText is [Platform.String].
func (p Platform) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what String returns, of a platform that the plugin is released for.
func (p *Platform) UnmarshalText(text []byte) error {
	all := PluginPlatforms()
	i := slices.IndexFunc(all, func(p Platform) bool { return p.String() == string(text) })
	if i < 0 {
		return fmt.Errorf("platform %q: only %v are released", text, all)
	}
	*p = all[i]
	return nil
}

// Linux is that of a node.
func Linux(arch string) Platform { return Platform{"linux", arch} }

// String returns for example "linux/amd64".
func (p Platform) String() string { return p.OS + "/" + p.Arch }

// File is what the file of a program is called there.
func (p Platform) File(program string) string {
	if p.OS == "windows" {
		return program + ".exe"
	}
	return program
}

// machines are the architectures as executables of each system have them.
var machines = map[Platform]any{
	{"linux", "amd64"}: elf.EM_X86_64, {"linux", "arm64"}: elf.EM_AARCH64,
	{"darwin", "amd64"}: macho.CpuAmd64, {"darwin", "arm64"}: macho.CpuArm64,
	{"windows", "amd64"}: uint16(pe.IMAGE_FILE_MACHINE_AMD64), {"windows", "arm64"}: uint16(pe.IMAGE_FILE_MACHINE_ARM64),
}

// Program is one that was built.
type Program struct {
	Name string
	// Path is where the file is.
	Path string
	// Info is what the linker wrote into it of its modules.
	Info *buildinfo.BuildInfo
}

// Build builds the programs into the directory dir, which it makes. Paths of this machine, the user's settings of the go
// command and what git would tell are kept out; each program is then read back, and refused when it is for another platform, is
// for Linux and not static, or was built with a setting that is not among those meant.
func Build(ctx context.Context, t source.Tree, at Platform, names []string, dir string) ([]Program, error) {
	if machines[at] == nil {
		return nil, fmt.Errorf("build for architecture %q: only %s are released", at.Arch, strings.Join(Arches, " and "))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("build for %s: %w", at, err)
	}
	variable := "-X " + source.Module + "/internal/version."
	flags := "-s -w -buildid= " + variable + "version=" + t.Version + " " + variable + "date=" + t.Time().Format(time.RFC3339)
	if t.Commit != "" {
		flags += " " + variable + "commit=" + t.Commit
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", dir + string(filepath.Separator)}
	for _, name := range names {
		args = append(args, "./cmd/"+name)
	}
	cmd := Go(ctx, t, at, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build for %s: %w\n%s", at, err, out)
	}
	var built []Program
	for _, name := range names {
		p := Program{Name: name, Path: filepath.Join(dir, at.File(name))}
		var err error
		if p.Info, err = buildinfo.ReadFile(p.Path); err != nil {
			return nil, fmt.Errorf("read back %s for %s: %w", name, at, err)
		}
		if err := check(p, t, at); err != nil {
			return nil, fmt.Errorf("built %s for %s: %w", name, at, err)
		}
		built = append(built, p)
	}
	return built, nil
}

// Go is the go command in the tree's root, for the platform, with the tree's toolchain. It works in the
// tree's workspace, since a tagged commit requires modules that are published only with it.
func Go(ctx context.Context, t source.Tree, at Platform, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = t.Root
	// Set, not unset: for what is not set the go command reads its own file of settings.
	cmd.Env = append(os.Environ(),
		"GOOS="+at.OS, "GOARCH="+at.Arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0", "GOTOOLCHAIN="+t.Go,
		"GOFLAGS=-mod=readonly", "GOWORK="+filepath.Join(t.Root, "go.work"), "GOFIPS140=off", "PWD="+t.Root)
	return cmd
}

// settings are those that a build may have recorded, and with which values. Experiments, other tags, a profile or a
// race detector would be one more.
var settings = map[string][]string{
	"-buildmode":     {"exe", "pie"}, // the latter is the default of macOS and Windows
	"-compiler":      {"gc"},
	"-trimpath":      {"true"},
	"CGO_ENABLED":    {"0"},
	"GOOS":           Systems,
	"GOARCH":         Arches,
	"GOAMD64":        {"v1"},
	"GOARM64":        {"v8.0"},
	"DefaultGODEBUG": nil, // from go.mod and the sources
}

func check(p Program, t source.Tree, at Platform) error {
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
	var machine any
	switch at.OS {
	case "darwin":
		f, err := macho.NewFile(file)
		if err != nil {
			return err
		}
		machine = f.Cpu
	case "windows":
		f, err := pe.NewFile(file)
		if err != nil {
			return err
		}
		machine = f.Machine
	default:
		f, err := elf.NewFile(file)
		if err != nil {
			return err
		}
		if machine = f.Machine; machine == machines[at] {
			return static(f)
		}
	}
	if machine != machines[at] {
		return fmt.Errorf("is for %v", machine)
	}
	return nil
}

func static(f *elf.File) error {
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP || s.Type == elf.PT_DYNAMIC {
			return fmt.Errorf("is not static: it has a segment %s", s.Type)
		}
	}
	return nil
}
