package redirectcmd_test

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	manifestOfWeb = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  template:
    metadata: {annotations: {traffic.sidecar.istio.io/excludeOutboundPorts: "1"}}
    spec: {containers: [{name: app, securityContext: {runAsUser: 1000, capabilities: {drop: [ALL]}}}]}
`
	manifestOfService = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
)

// folder writes files, and returns their folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// TestCheckManifests is the command's contract: what is read, what fails, and the exit codes.
func TestCheckManifests(t *testing.T) {
	refused := strings.Replace(manifestOfWeb, `"1"`, `"x"`, 1)
	dir := folder(t, map[string]string{
		"good/web.yaml": manifestOfWeb, "good/below/service.yml": manifestOfService, "good/README.md": "[", "good/.hidden/x.yaml": "[",
		"bad/web.yaml": refused, "empty/README.md": "", "list.json": `{"apiVersion": "v1", "kind": "List", "items": []}`,
	})
	for link, to := range map[string]string{"link": "good", "links/to-good": "../good", "links/to-itself": ".", "links/again.yaml": "../good", "broken/x.yaml": "nothing"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o755))
		require.NoError(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	for name, tt := range map[string]struct {
		args        []string
		stdin       string
		code        int
		out, errOut string
	}{
		"a folder":                   {[]string{"--as-injected", dir + "/good"}, "", 0, "1 pods and workloads: 1 captured; passed over: 1 Service", ""},
		"a link to a folder":         {[]string{"--as-injected", dir + "/link"}, "", 0, "1 pods and workloads: 1 captured; passed over: 1 Service", ""},
		"links in a folder":          {[]string{"--as-injected", dir + "/links"}, "", 0, "1 pods and workloads: 1 captured; passed over: 1 Service", ""},
		"a link to nothing":          {[]string{dir + "/broken"}, "", 1, "", "x.yaml: no such file"},
		"standard input":             {[]string{"--as-injected", "-"}, refused, 1, `error: standard input:6: Deployment shop/web: refused: annotation traffic.sidecar.istio.io/excludeOutboundPorts="x"`, ""},
		"the flag too":               {[]string{"--as-injected", "-f", dir + "/bad", "-f", dir + "/good/web.yaml"}, "", 1, "2 pods and workloads: 1 captured, 1 refused", ""},
		"outside does not fail":      {[]string{"-"}, manifestOfWeb, 0, "1 pods and workloads: 1 outside", ""},
		"but where that is asked":    {[]string{"-", "--fail-on", "outside"}, manifestOfWeb, 1, "outside: This pod is not captured", ""},
		"refused where it is not":    {[]string{"--as-injected", "-", "--fail-on", "outside"}, refused, 0, "warning: standard input:6", ""},
		"a field that is none":       {[]string{"-"}, strings.Replace(manifestOfWeb, "containers", "contaners", 1), 1, `no field "spec.template.spec.contaners"`, ""},
		"and is let pass":            {[]string{"-", "--strict=false"}, strings.Replace(manifestOfWeb, "containers", "contaners", 1), 0, "1 outside", ""},
		"the plugin's settings":      {[]string{"--as-injected", "-", "--refuse-proxy-uid"}, strings.Replace(manifestOfWeb, "1000", "1337", 1), 1, "refused: ", ""},
		"a namespace for all":        {[]string{"-", "-n", "blue", "--fail-on", "outside"}, strings.Replace(manifestOfWeb, ", namespace: shop", "", 1), 1, "Deployment blue/web", ""},
		"no mesh's pods":             {[]string{"-"}, manifestOfService, 0, "0 pods and workloads; passed over: 1 Service", ""},
		"nothing":                    {[]string{"-"}, "# nothing\n", 1, "", "no manifest is in what was given"},
		"a folder without manifests": {[]string{dir + "/empty"}, "", 1, "", "no .yaml, .yml or .json is in the folder"},
		"a file that is not there":   {[]string{dir + "/none.yaml", dir + "/bad"}, "", 1, "", "none.yaml"},
		"no path":                    {nil, "", 2, "", "name files or folders"},
		"an unknown kind":            {[]string{"-", "--fail-on", "refused,broken"}, manifestOfWeb, 2, "", "--fail-on broken: not one of unreadable, undecided, refused, nothing-captured, bypass, warning, outside"},
		"twice standard input":       {[]string{"-", "--config", "-"}, manifestOfWeb, 2, "", "only one of them"},
	} {
		got := call{stdin: tt.stdin}.run(t, append([]string{"check-manifests"}, tt.args...)...)
		assert.Equal(t, tt.code, got.code, "%s: %s%s", name, got.out, got.errOut)
		assert.Contains(t, got.out, tt.out, name)
		assert.Contains(t, got.errOut, tt.errOut, name)
	}
}

// TestCheckManifestsOutputs: each output has the finding with its file and line, and none can be forged by what is in a manifest.
func TestCheckManifestsOutputs(t *testing.T) {
	text := strings.Replace(manifestOfWeb, `"1"`, `"x\n::error::%0A,:"`, 1)
	got := call{stdin: text}.run(t, "check-manifests", "--as-injected", "-", "-o", "github")
	assert.Equal(t, 1, got.code)
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	require.Len(t, lines, 2, got.out)
	assert.Contains(t, lines[0], "::error file=standard input,line=6,title=Deployment shop/web%3A refused::annotation ")
	assert.Contains(t, lines[0], "%250A", "a percent sign is escaped")

	var report struct {
		Pods    []struct{ Object string }
		Failing []struct {
			File, Kind, Text string
			Line             int
		}
	}
	got = call{stdin: text}.run(t, "check-manifests", "--as-injected", "-", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(got.out), &report))
	require.Len(t, report.Failing, 1)
	assert.Equal(t, 6, report.Failing[0].Line)
	assert.Equal(t, "Deployment shop/web", report.Pods[0].Object)

	var suites struct {
		Failures int `xml:"failures,attr"`
		Suites   []struct {
			Name  string `xml:"name,attr"`
			Cases []struct {
				Name    string `xml:"name,attr"`
				Failure *struct {
					Type string `xml:"type,attr"`
				} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	got = call{stdin: text + "---\n" + strings.Replace(manifestOfWeb, "name: web", "name: other", 1) + "---\na: ["}.run(t, "check-manifests", "--as-injected", "-", "-o", "junit")
	require.NoError(t, xml.Unmarshal([]byte(got.out), &suites), got.out)
	assert.Equal(t, 2, suites.Failures)
	require.Len(t, suites.Suites, 1)
	require.Len(t, suites.Suites[0].Cases, 3)
	assert.Equal(t, "unreadable", suites.Suites[0].Cases[0].Failure.Type)
	assert.Equal(t, "refused", suites.Suites[0].Cases[1].Failure.Type)
	assert.Nil(t, suites.Suites[0].Cases[2].Failure)
}
