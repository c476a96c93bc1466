package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
)

// The release that the tests look at. Its suffix and commit are made up, its time is one that no clock shows.
const (
	testVersion = "v1.2.3-test.1"
	testCommit  = "0123456789abcdef0123456789abcdef01234567"
	testEpoch   = "1234567890"
)

var (
	temp string // of the fixture
	// testRegistry is a registry of this process, for which the release is made.
	testRegistry string
	serving      atomic.Value // of http.Handler
)

// emptyRegistry forgets what was pushed.
func emptyRegistry() {
	serving.Store(registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true)))
}

func TestMain(m *testing.M) {
	var err error
	if temp, err = os.MkdirTemp("", "meshcni-release-test-"); err != nil {
		panic(err)
	}
	plugins = made
	emptyRegistry()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serving.Load().(http.Handler).ServeHTTP(w, r)
	}))
	testRegistry = server.Listener.Addr().String() + "/team"
	code := m.Run()
	server.Close()
	if err := os.RemoveAll(temp); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// outDir makes the whole release once, from a copy of the sources that is no checkout.
func outDir(t *testing.T) string {
	t.Helper()
	dir, err := released()
	require.NoError(t, err)
	return dir
}

var released = sync.OnceValues(func() (string, error) {
	sources, out := filepath.Join(temp, "a"), filepath.Join(temp, "dist")
	if err := copyTree("..", sources); err != nil {
		return "", err
	}
	return out, makeFrom(sources, out)
})

// makeFrom makes the release of sources.
func makeFrom(sources, out string) error {
	if err := os.Setenv("SOURCE_DATE_EPOCH", testEpoch); err != nil {
		return err
	}
	_, err := run(context.Background(), "all", "--source", sources, "--output", out, "--version", testVersion, "--commit", testCommit, "--registry", testRegistry)
	return errors.Join(err, os.Unsetenv("SOURCE_DATE_EPOCH"))
}

// run runs the program's command line.
func run(ctx context.Context, args ...string) (string, error) {
	var said bytes.Buffer
	c := command()
	c.SetArgs(args)
	c.SetOut(&said)
	c.SetErr(io.Discard)
	err := c.ExecuteContext(ctx)
	return said.String(), err
}

// copyTree copies sources, except for what is no source.
func copyTree(from, to string) error {
	leave := []string{".git", ".cache", "bin", "dist", "playground/node_modules", "playground/dist"}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // somebody's temporary file
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if slices.Contains(leave, filepath.ToSlash(rel)) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), text, 0o600)
	})
}

// TestReproducible: the same bytes come out of another directory, of files that belong to somebody else, with another umask and time
// zone, whatever the user's settings of the go command are.
func TestReproducible(t *testing.T) {
	first := outDir(t)
	sources, second := filepath.Join(t.TempDir(), "somewhere", "else", "b"), t.TempDir()
	require.NoError(t, os.MkdirAll(sources, 0o755))
	// Of the copy that the first was made of, since the sources may have changed meanwhile.
	require.NoError(t, copyTree(filepath.Join(temp, "a"), sources))
	if os.Getuid() == 0 {
		require.NoError(t, filepath.WalkDir(sources, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Chown(path, 12345, 54321))
		}))
	}
	for name, value := range map[string]string{
		"TZ": "Pacific/Chatham", "LC_ALL": "C.UTF-8", "GOAMD64": "v3", "GOARM64": "v9.0", "CGO_ENABLED": "1",
		"GOFLAGS": "-buildvcs=auto -tags=other", "GOEXPERIMENT": "synctest",
	} {
		t.Setenv(name, value)
	}
	require.NoError(t, makeFrom(sources, second))
	sums, err := os.ReadFile(filepath.Join(first, "checksums.txt"))
	require.NoError(t, err)
	again, err := os.ReadFile(filepath.Join(second, "checksums.txt"))
	require.NoError(t, err)
	assert.Equal(t, string(sums), string(again))
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "checksums.txt")
	check.Dir = second
	text, err := check.CombinedOutput()
	require.NoError(t, err, "%s", text)
	assert.Equal(t, len(files(t))-1, strings.Count(string(text), ": OK\n"))
}

// files are the names in the release's directory.
func files(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(outDir(t))
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestFiles(t *testing.T) {
	want := []string{
		"checksums.txt",
		"meshcni-1.2.3-test.1.tgz",
		"meshcni.yaml",
		"meshcni_1.2.3-test.1_image_linux_amd64.cdx.json",
		"meshcni_1.2.3-test.1_image_linux_amd64.docker.tar",
		"meshcni_1.2.3-test.1_image_linux_arm64.cdx.json",
		"meshcni_1.2.3-test.1_image_linux_arm64.docker.tar",
		"meshcni_1.2.3-test.1_image_oci.tar",
		"meshcni_1.2.3-test.1_linux_amd64.cdx.json",
		"meshcni_1.2.3-test.1_linux_amd64.tar.gz",
		"meshcni_1.2.3-test.1_linux_arm64.cdx.json",
		"meshcni_1.2.3-test.1_linux_arm64.tar.gz",
		"meshcni_1.2.3-test.1_manifests.tar.gz",
	}
	for _, p := range plugins {
		base := "kubectl-meshcni_1.2.3-test.1_" + p.os + "_" + p.arch
		want = append(want, base+".cdx.json", base+".tar.gz")
	}
	slices.Sort(want)
	assert.Equal(t, want, files(t))
}

func TestUsage(t *testing.T) {
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "meshcni_1.2.2_image_oci.tar"), nil, 0o600))
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"image", "--version", "1.2.3"}, `version "1.2.3" is not of the form v1.2.3`},
		{[]string{"image", "--version", "v1.2.3+more"}, `version "v1.2.3+more" is not of the form v1.2.3`},
		{[]string{"image", "--commit", "main"}, `commit "main" is not the hash of a commit`},
		{[]string{"image", "--commit", "--output=/"}, `commit "--output=/" is not the hash of a commit`},
		{[]string{"image", "--arch", "riscv64"}, `architecture "riscv64": only amd64 and arm64`},
		{[]string{"chart", "--registry", "team"}, `registry "team" makes no image's name: "team/meshcni/meshcni:v0`},
		{[]string{"chart", "--registry", "registry.example/"}, `registry "registry.example/" makes no image's name`},
		{[]string{"image", "--registry", "https://registry.example"}, `registry "https://registry.example" makes no image's name`},
		{[]string{"image", "--source", "/"}, "is module " + ourModule},
		{[]string{"all", "--output", full}, full + " is not empty"},
	} {
		_, err := run(t.Context(), append([]string{"--output", t.TempDir()}, tt.args...)...)
		assert.ErrorContains(t, err, tt.want, "%v", tt.args)
	}
}

// TestVersionsInWorkspace: a module that is only for tests may not raise what the programs are built with. They have the versions of
// cmd/go.mod, as for who installs them by version.
func TestVersionsInWorkspace(t *testing.T) {
	text, err := os.ReadFile("../cmd/go.mod")
	require.NoError(t, err)
	mod, err := modfile.Parse("go.mod", text, nil)
	require.NoError(t, err)
	required := map[string]string{}
	for _, r := range mod.Require {
		required[r.Mod.Path] = r.Mod.Version
	}
	found := 0
	for _, e := range untargz(t, filepath.Join(outDir(t), "meshcni_1.2.3-test.1_linux_amd64.tar.gz")) {
		info, err := buildinfo.Read(bytes.NewReader(e.data))
		if err != nil {
			continue // no program
		}
		found++
		for _, d := range others(info) {
			assert.Equal(t, required[d.Path], d.Version, d.Path)
		}
	}
	assert.Len(t, nodePrograms, found)
}

// entry is one of an archive.
type entry struct {
	*tar.Header
	data []byte
}

func untar(t *testing.T, r io.Reader) (all []entry) {
	t.Helper()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		data, err := io.ReadAll(tr)
		require.NoError(t, err)
		all = append(all, entry{h, data})
	}
}

func untargz(t *testing.T, file string) []entry {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	r, err := gzip.NewReader(f)
	require.NoError(t, err)
	assert.True(t, r.ModTime.IsZero(), "the compressor's header tells a time")
	return untar(t, r)
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}
