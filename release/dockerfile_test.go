package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"

	"github.com/meshcni/meshcni/release/internal/source"
)

// TestDockerfile does what the Dockerfile says, with what it has: the sources less what .dockerignore keeps out. The files
// and the configuration that come out are those of the image.
func TestDockerfile(t *testing.T) {
	f, err := os.Open("../Dockerfile")
	require.NoError(t, err)
	defer f.Close()
	parsed, err := parser.Parse(f)
	require.NoError(t, err)
	stages, _, err := instructions.Parse(parsed.AST, nil)
	require.NoError(t, err)
	require.Len(t, stages, 2)

	tree, err := source.Open(t.Context(), root(t), source.Options{Version: testVersion})
	require.NoError(t, err)
	build := stages[0]
	assert.Equal(t, "build", build.Name)
	assert.Equal(t, "golang:"+strings.TrimPrefix(tree.Go, "go"), build.BaseName, "the toolchain of release/go.mod")
	outDir(t)
	context := filepath.Join(t.TempDir(), "context")
	require.NoError(t, copyTree(filepath.Join(temp, "a"), context, ignored(t)))
	built := runStage(t, build, context)

	final := stages[1]
	assert.Equal(t, "scratch", final.BaseName)
	for arch, img := range images(t) {
		if arch != "arm64" {
			continue // the one that was built
		}
		config, err := img.ConfigFile()
		require.NoError(t, err)
		labels := map[string]string{}
		for _, c := range final.Commands {
			switch c := c.(type) {
			case *instructions.ArgCommand:
			case *instructions.CopyCommand:
				assert.Equal(t, "build", c.From)
				assert.Equal(t, []string{"/rootfs/"}, c.SourcePaths)
				assert.Equal(t, "/", c.DestPath)
			case *instructions.EnvCommand:
				assert.Equal(t, config.Config.Env, []string{c.Env[0].String()})
			case *instructions.UserCommand:
				assert.Equal(t, config.Config.User, c.User)
			case *instructions.WorkdirCommand:
				assert.Equal(t, config.Config.WorkingDir, c.Path)
			case *instructions.EntrypointCommand:
				assert.False(t, c.PrependShell)
				assert.Equal(t, config.Config.Entrypoint, c.CmdLine)
			case *instructions.CmdCommand:
				assert.False(t, c.PrependShell)
				assert.Equal(t, config.Config.Cmd, c.CmdLine)
			case *instructions.LabelCommand:
				for _, l := range c.Labels {
					value := strings.Trim(l.Value, `"`)
					value = strings.ReplaceAll(strings.ReplaceAll(value, "$VERSION", testVersion), "$COMMIT", testCommit)
					labels[strings.Trim(l.Key, `"`)] = value
				}
			default:
				assert.Fail(t, "does what the image does not", "%s", c)
			}
		}
		// The time is the builder's to say.
		delete(config.Config.Labels, "org.opencontainers.image.created")
		assert.Equal(t, config.Config.Labels, labels)
		sameFiles(t, rootfs(t, img), built)
	}
}

// runStage runs the build stage's commands in the context, for another architecture than the builder's, and returns the
// directory that stands for /rootfs.
func runStage(t *testing.T, build instructions.Stage, context string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "rootfs")
	layer, ran := t.TempDir(), 0
	for _, c := range build.Commands {
		switch c := c.(type) {
		case *instructions.CopyCommand:
			for _, p := range c.SourcePaths {
				_, err := os.Stat(filepath.Join(context, p))
				assert.NoError(t, err, "not in the context: %s", c)
				if p != "." {
					text, err := os.ReadFile(filepath.Join(context, p))
					require.NoError(t, err)
					dir := filepath.Join(layer, c.DestPath)
					require.NoError(t, os.MkdirAll(dir, 0o755))
					require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(p)), text, 0o644))
				}
			}
		case *instructions.RunCommand:
			script := strings.Join(c.CmdLine, " ")
			if !strings.Contains(script, " rootfs ") {
				assert.Regexp(t, `^go -C cmd mod download && go -C release mod download$`, script)
				for _, module := range []string{"cmd", "release"} {
					known(t, filepath.Join(layer, module))
				}
				continue
			}
			ran++
			require.Contains(t, script, "--output /rootfs")
			cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(script, "/rootfs", out, 1))
			cmd.Dir = context
			cmd.Env = append(os.Environ(), "TARGETARCH=arm64", "VERSION="+testVersion, "COMMIT="+testCommit, "SOURCE_DATE_EPOCH="+testEpoch)
			text, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", text)
		}
	}
	assert.Equal(t, 1, ran)
	return out
}

// known requires that the go.mod of each module beside this one was copied too: without it, nothing can be downloaded.
func known(t *testing.T, module string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(module, "go.mod"))
	require.NoError(t, err)
	mod, err := modfile.Parse("go.mod", text, nil)
	require.NoError(t, err)
	for _, r := range mod.Replace {
		assert.FileExists(t, filepath.Join(module, r.New.Path, "go.mod"))
	}
}

// sameFiles compares a layer with a directory: names, bytes, modes.
func sameFiles(t *testing.T, layer []entry, dir string) {
	t.Helper()
	found := 0
	require.NoError(t, filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		found++
		return err
	}))
	assert.Equal(t, len(layer)+1, found, "and the directory itself")
	for _, e := range layer {
		st, err := os.Lstat(filepath.Join(dir, e.Name))
		require.NoError(t, err)
		assert.Equal(t, e.FileInfo().Mode().String(), st.Mode().String(), e.Name)
		if st.IsDir() {
			continue
		}
		if e.Linkname != "" {
			target, err := os.Readlink(filepath.Join(dir, e.Name))
			require.NoError(t, err)
			assert.Equal(t, e.Linkname, target, e.Name)
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(e.data, text), "%s differs", e.Name)
	}
}

// ignored are the lines of .dockerignore, which are paths here and no patterns.
func ignored(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../.dockerignore")
	require.NoError(t, err)
	var paths []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		assert.NotRegexp(t, `[*!?]`, line, "this test reads paths only")
		paths = append(paths, line)
	}
	return paths
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := source.Find(".")
	require.NoError(t, err)
	return dir
}
