package deploy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

const (
	chart     = "helm/meshcni"
	namespace = "meshcni-system"
	// kubeVersion is what the chart is rendered for. Helm's own answer depends on
	// how the program was built.
	kubeVersion = "1.36.0"
)

// values are what a user gives to helm, nested.
type values map[string]any

// with returns both, the second's winning, key by key.
func (v values) with(more values) values {
	out := values{}
	for _, from := range []values{v, more} {
		for key, value := range from {
			had, a := out[key].(values)
			adds, b := value.(values)
			if a && b {
				value = had.with(adds)
			}
			out[key] = value
		}
	}
	return out
}

// set makes values of one dotted key.
func set(key string, value any) values {
	first, rest, nested := strings.Cut(key, ".")
	if nested {
		value = set(rest, value)
	}
	return values{first: value}
}

var needsHelm = netnstest.Need{Name: "helm (run .ci/tool helm)", Check: func() error {
	_, err := proctest.Tool("helm")
	return err
}}

// helm runs it with a home of the test's own. The chart's files are opened, which
// makes them inputs of the cached test result.
func helm(t testing.TB, args ...string) (stdout string, err error) {
	t.Helper()
	netnstest.Require(t, needsHelm)
	readAll(t, chart)
	program, err := proctest.Tool("helm")
	require.NoError(t, err)
	home := t.TempDir()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w: %s", args[0], err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

func readAll(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		rel, errRel := filepath.Rel(dir, path)
		files[rel] = string(text)
		return errors.Join(err, errRel)
	}))
	require.NotEmpty(t, files)
	return files
}

// placeholder is the registry of the plain manifests: a name that never resolves (RFC 6761).
const placeholder = "registry.invalid"

// located says where the image is, unless the values do: the chart does not render without.
func (v values) located() values { return set("image.registry", placeholder).with(v) }

// write writes values to a file, with a place of the image.
func (v values) write(t testing.TB) (path string) {
	t.Helper()
	text, err := yaml.Marshal(v.located())
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "values.yaml")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// render is one helm template.
func render(t testing.TB, v values, flags ...string) (objects, error) {
	t.Helper()
	args := append([]string{"template", "meshcni", chart, "--namespace", namespace, "--kube-version", kubeVersion, "--values", v.write(t)}, flags...)
	out, err := helm(t, args...)
	if err != nil {
		return nil, err
	}
	return parse(t, out)[""], nil
}

func mustRender(t testing.TB, v values, flags ...string) objects {
	t.Helper()
	all, err := render(t, v, flags...)
	require.NoError(t, err)
	return all
}

// renderAll renders the chart once for each of the values, in one run: as
// dependencies, under other names, of a chart that has nothing else.
func renderAll(t testing.TB, all []values) []objects {
	t.Helper()
	rendered, err := tryRenderAll(t, all)
	require.NoError(t, err)
	return rendered
}

func tryRenderAll(t testing.TB, all []values) ([]objects, error) {
	t.Helper()
	out, err := templateAll(t, all)
	if err != nil {
		return nil, err
	}
	parsed := parse(t, out)
	rendered := make([]objects, len(all))
	for i := range all {
		rendered[i] = parsed[alias(i)]
		require.NotEmpty(t, rendered[i])
	}
	return rendered, nil
}

// alias is the name of one of many dependencies.
func alias(i int) string { return fmt.Sprintf("c%d", i) }

// templateAll is what helm prints for all of them.
func templateAll(t testing.TB, all []values) (out string, err error) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "charts", "meshcni"), os.DirFS(chart)))
	var chartFile struct{ Version string }
	text, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &chartFile))
	given, dependencies := values{}, []values{}
	for i, v := range all {
		given[alias(i)] = v.located()
		dependencies = append(dependencies, values{"name": "meshcni", "version": chartFile.Version, "alias": alias(i)})
	}
	text, err = yaml.Marshal(values{"apiVersion": "v2", "name": "all", "version": "0.0.0", "dependencies": dependencies})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Chart.yaml"), text, 0o600))
	return helm(t, "template", "meshcni", dir, "--namespace", namespace, "--kube-version", kubeVersion, "--values", given.write(t))
}

var source = regexp.MustCompile(`(?m)^# Source: (?:all/charts/(c[0-9]+)|meshcni)/`)

// parse reads what helm template prints, by dependency.
func parse(t testing.TB, out string) map[string]objects {
	t.Helper()
	all := map[string]objects{}
	for _, text := range documents(out) {
		if o, ok := parseOne(t, text); ok {
			from := source.FindStringSubmatch(text)
			require.NotNil(t, from, "%s", text)
			all[from[1]] = append(all[from[1]], o)
		}
	}
	return all
}

func documents(out string) []string { return strings.Split("\n"+out, "\n---\n") }

// parseOne reads one document, repeated keys refused. It reports false when there is nothing in it.
func parseOne(t testing.TB, text string) (o unstructured.Unstructured, ok bool) {
	t.Helper()
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), &o.Object), "%s", text)
	return o, len(o.Object) > 0
}

// objects are what was rendered from some values.
type objects []unstructured.Unstructured

// of returns those of a kind.
func (o objects) of(kind string) (some objects) {
	for _, each := range o {
		if each.GetKind() == kind {
			some = append(some, each)
		}
	}
	return some
}

// one reads the only object of a kind, with unknown fields refused.
func one[T any](t testing.TB, o objects, kind, name string) (into T) {
	t.Helper()
	var found objects
	for _, each := range o.of(kind) {
		if each.GetName() == name {
			found = append(found, each)
		}
	}
	require.Len(t, found, 1, "%s %s", kind, name)
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(found[0].Object, &into, true))
	return into
}

// value is the environment variable's of a container, as the process gets it.
func value(c corev1.Container, name string) (string, bool) {
	for _, e := range c.Env {
		if e.Name == name {
			return expand(e.Value), true
		}
	}
	return "", false
}

// expand does what the kubelet does with args and env in which nothing is
// referred to: $$ is a dollar.
func expand(text string) string { return strings.ReplaceAll(text, "$$", "$") }
