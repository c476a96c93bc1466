package monitoring_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

const (
	rulesFile     = "meshcni.rules.yaml"
	rulesTestFile = "meshcni.rules.test.yaml"
	rulesDayFile  = "meshcni.rules.day.test.yaml"
)

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func rules(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []rule `json:"rules"`
		} `json:"groups"`
	}
	require.NoError(t, yaml.UnmarshalStrict(text, &file))
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

var hasPromtool = netnstest.Need{Name: "promtool (.ci/promtool)", Check: func() error {
	if _, err := proctest.Tool("promtool"); err == nil {
		return nil
	}
	return exec.Command("../../.ci/promtool").Run()
}}

func runPromtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := proctest.Tool("promtool")
	require.NoError(t, err)
	for _, file := range args { // those that are files are inputs of the cached result
		_, _ = os.ReadFile(file)
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	require.NoError(t, err, "promtool %v: %s", args, out)
}

// TestMain runs the tests in the directory that they judge.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../../deploy/monitoring"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestRulesPassPromtool(t *testing.T) {
	netnstest.Require(t, hasPromtool)
	runPromtool(t, "check", "rules", rulesFile)
	runPromtool(t, "test", "rules", rulesDayFile) // the longest alerts, in large steps
}

// TestAlertStories evaluates every alert each minute of many hours; make test leaves it to make ci.
func TestAlertStories(t *testing.T) {
	netnstest.Require(t, hasPromtool)
	runPromtool(t, "test", "rules", rulesTestFile)
}

// TestEveryAlertIsTested: for each there is a case in which it fires.
func TestEveryAlertIsTested(t *testing.T) {
	text, err := os.ReadFile(rulesTestFile)
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, r := range rules(t) {
		assert.Contains(t, string(text), `- {labels: '{alertname="`+r.Alert+`"`, "no test in which %s fires", r.Alert)
		assert.False(t, seen[r.Alert], "%s is there twice", r.Alert)
		seen[r.Alert] = true
	}
}

// TestEveryAlertSaysWhatToDo: whoever is woken gets a sentence, an explanation and a place to read on. That the place exists
// is for internal/doctest, which follows all links into the documentation.
func TestEveryAlertSaysWhatToDo(t *testing.T) {
	for _, r := range rules(t) {
		assert.Regexp(t, `^Meshcni[A-Z][A-Za-z]+$`, r.Alert)
		assert.Contains(t, []string{"critical", "warning", "info"}, r.Labels["severity"], r.Alert)
		for _, a := range []string{"summary", "description"} {
			assert.Regexp(t, `\.$`, r.Annotations[a], "%s: %s", r.Alert, a)
		}
		assert.Regexp(t, `^https://github\.com/meshcni/meshcni/blob/main/docs/[a-z-]+\.md#[a-z-]+$`, r.Annotations["runbook_url"], r.Alert)
	}
}

// TestDashboardQueriesPassPromtool: promtool checks rules only, so each query
// is made one.
func TestDashboardQueriesPassPromtool(t *testing.T) {
	netnstest.Require(t, hasPromtool)
	type recording struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var all []recording
	for i, q := range dashboardQueries(t) {
		all = append(all, recording{fmt.Sprintf("query_%d", i), substitute(q.expr)})
	}
	file := filepath.Join(t.TempDir(), "rules.json") // JSON is YAML
	text, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": all}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o600))
	runPromtool(t, "check", "rules", file)
}

// substitute does what Grafana does with its variables.
func substitute(expr string) string {
	return strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$cluster", ".*", "$node", ".*").Replace(expr)
}
