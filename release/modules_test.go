package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/meshcni/meshcni/release/internal/source"
	"github.com/meshcni/meshcni/release/internal/tag"
)

// TestInstallByVersion publishes a tagged commit's modules on a module proxy of files, and installs the plugin from
// there, as users do: no checkout, no workspace.
func TestInstallByVersion(t *testing.T) {
	sources, proxy := filepath.Join(t.TempDir(), "sources"), t.TempDir()
	require.NoError(t, copyTree("..", sources, nil))
	var said bytes.Buffer
	c := command()
	c.SetArgs([]string{"modules", "--source", sources, "--version", testVersion})
	c.SetOut(&said)
	require.NoError(t, c.ExecuteContext(t.Context()))
	assert.Equal(t, "v1.2.3-test.1\ncmd/v1.2.3-test.1\n", said.String())
	for _, dir := range append([]string{"."}, tag.Modules...) {
		publish(t, proxy, sources, dir)
	}

	env := append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "CGO_ENABLED=0", "GONOSUMDB=*", "GONOSUMCHECK=1", "GOTOOLCHAIN=local")
	downloads, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	require.NoError(t, err)
	bin := t.TempDir()
	env = append(env, "GOMODCACHE="+t.TempDir(), "GOBIN="+bin,
		"GOPROXY=file://"+proxy+",file://"+strings.TrimSpace(string(downloads))+"/cache/download")
	cmd := exec.CommandContext(t.Context(), "go", "install", "-trimpath", source.Module+"/cmd/meshcni@"+testVersion)
	cmd.Dir, cmd.Env = t.TempDir(), env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.CommandContext(t.Context(), filepath.Join(bin, "meshcni"), "--version").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "meshcni "+testVersion+" ")
}

// publish writes one module as a proxy serves it.
func publish(t *testing.T, proxy, sources, dir string) {
	t.Helper()
	version := module.Version{Path: source.Module, Version: testVersion}
	if dir != "." {
		version.Path += "/" + dir
	}
	at := filepath.Join(proxy, version.Path, "@v", testVersion)
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	mod, err := os.ReadFile(filepath.Join(sources, dir, "go.mod"))
	require.NoError(t, err)
	parsed, err := modfile.Parse("go.mod", mod, nil)
	require.NoError(t, err)
	assert.Empty(t, parsed.Replace, dir)
	require.NoError(t, os.WriteFile(at+".mod", mod, 0o644))
	info, err := json.Marshal(map[string]any{"Version": testVersion, "Time": time.Unix(1234567890, 0)})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(at+".info", info, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(at), "list"), []byte(testVersion+"\n"), 0o644))
	f, err := os.Create(at + ".zip")
	require.NoError(t, err)
	require.NoError(t, zip.CreateFromDir(f, version, filepath.Join(sources, dir)))
	require.NoError(t, f.Close())
}

// TestVersionsInWorkspace: a module that is only for tests may not raise what the programs are built with. They have
// the versions of cmd/go.mod, as for who installs them by version.
func TestVersionsInWorkspace(t *testing.T) {
	file := filepath.Join(root(t), "cmd", "go.mod")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	mod, err := modfile.Parse(file, text, nil)
	require.NoError(t, err)
	required := map[string]string{}
	for _, r := range mod.Require {
		required[r.Mod.Path] = r.Mod.Version
	}
	bin := filepath.Join(t.TempDir(), "meshcni-node")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", bin, "./cmd/meshcni-node")
	cmd.Dir, cmd.Env = root(t), append(os.Environ(), "CGO_ENABLED=0", "GOWORK="+filepath.Join(root(t), "go.work"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	info, err := buildinfo.ReadFile(bin)
	require.NoError(t, err)
	require.NotEmpty(t, info.Deps)
	for _, d := range info.Deps {
		if !tag.Ours(d.Path) {
			assert.Equal(t, required[d.Path], d.Version, d.Path)
		}
	}
}
