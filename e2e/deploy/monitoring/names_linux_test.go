package monitoring_test

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// foreign are metrics of others, with what they are of.
var foreign = map[string]string{
	"up": "Prometheus", "ALERTS": "Prometheus", "ALERTS_FOR_STATE": "Prometheus",
	"kube_daemonset_status_desired_number_scheduled": "kube-state-metrics",
	"kube_daemonset_status_number_ready":             "kube-state-metrics",
	"kube_node_info":                                 "kube-state-metrics",
	"kube_pod_owner":                                 "kube-state-metrics",
}

// targetLabels are what a scrape adds to each series; README.md says so.
var targetLabels = []string{"job", "instance", "node", "cluster", "namespace", "pod"}

// foreignLabels are those of foreign metrics that we use.
var foreignLabels = []string{"daemonset", "alertname", "alertstate", "severity", "owner_kind", "owner_name"}

// values are those of labels that no help text names.
var values = map[string][]string{
	"program": {"meshcni-node", "meshcni-repair", "meshcni-taint"},
	"outcome": func() (all []string) {
		for _, o := range status.Codes(status.KindOutcome) {
			all = append(all, string(o))
		}
		return all
	}(),
	"reason": func() (all []string) {
		for _, r := range selection.Reasons() {
			all = append(all, string(r))
		}
		return all
	}(),
	"state": func() (all []string) {
		for _, s := range status.States() {
			all = append(all, string(s))
		}
		return all
	}(),
	"bypass": func() (all []string) {
		for _, code := range dialect.BypassCodes {
			all = append(all, string(code))
		}
		return all
	}(),
	"kind":        {"no-listeners"}, // the help of drift_found_total has all
	"code":        {"fight"},
	"http_status": {"429", "5..", "error"},
	"cause":       {"credentials-changed"},
}

var placeholder = regexp.MustCompile(`\{\{-? *(?:\$labels\.)?([a-z_]+) *-?\}\}|\$labels\.([a-z_]+)`)

// check compares one expression, and the text that is shown with its result,
// with what the agent exports.
func check(t *testing.T, where, expr, text string, agent map[string]metric) []string {
	t.Helper()
	q, err := scan(expr)
	require.NoError(t, err, where)
	assert.Empty(t, q.bare, "%s: a counter without rate or increase only rises", where)
	labels := slices.Concat(targetLabels, foreignLabels)
	for _, name := range q.metrics {
		m, ours := agent[name]
		_, others := foreign[name]
		assert.True(t, ours || others, "%s: the agent exports no %s", where, name)
		labels = append(labels, m.labels...)
		for _, c := range q.matchers[name] {
			if !ours {
				continue
			}
			assert.Contains(t, slices.Concat(targetLabels, m.labels), c.label, "%s: no label of %s", where, name)
			if strings.HasPrefix(c.value, "$") || slices.Contains(targetLabels, c.label) {
				continue
			}
			for value := range strings.SplitSeq(c.value, "|") {
				named := regexp.MustCompile(`\b` + regexp.QuoteMeta(value) + `\b`).MatchString(m.help)
				assert.True(t, named || slices.Contains(values[c.label], value), "%s: %s of %s is never %q", where, c.label, name, value)
			}
		}
	}
	for _, label := range q.grouping {
		assert.Contains(t, labels, label, "%s: grouped by what no metric of it has", where)
	}
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		assert.Contains(t, labels, m[1]+m[2], "%s: shows what no metric of it has", where)
	}
	return q.metrics
}

// TestNames: a query for a metric that is called otherwise is no error in
// Prometheus, but an alert that never fires.
func TestNames(t *testing.T) {
	agent := exported(t)
	for _, r := range rules(t) {
		check(t, r.Alert, r.Expr, r.Annotations["summary"]+r.Annotations["description"], agent)
	}
	shown := map[string]bool{}
	for _, q := range dashboardQueries(t) {
		for _, name := range check(t, q.panel, substitute(q.expr), q.legend, agent) {
			shown[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(agent)) {
		if strings.HasPrefix(name, "meshcni_") && !strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") {
			assert.True(t, shown[name] || shown[name+"_bucket"], "the dashboard does not show %s", name)
		}
	}
}

// TestMetricsDocumented: the reference lists every metric of ours, and no page names one that does not exist.
func TestMetricsDocumented(t *testing.T) {
	const top, reference = "../../", "docs/troubleshooting.md"
	agent := exported(t)
	mention := regexp.MustCompile(`\bmeshcni_[a-z_]+[a-z]\b`)
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "deploy/*.md", "deploy/*/*.md", "deploy/monitoring/*.yaml", "deploy/monitoring/*.json"} {
		found, err := filepath.Glob(top + pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		pages = append(pages, found...)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		names := mention.FindAllString(string(text), -1)
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			_, ok := agent[name]
			assert.True(t, ok, "%s: the agent exports no %s", page, name)
		}
	}
	text, err := os.ReadFile(top + reference)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), "<!-- metrics, from their help -->\n")
	require.True(t, found)
	_, after, found := strings.Cut(rest, "<!-- end -->")
	require.True(t, found)
	made := before + "<!-- metrics, from their help -->\n\n" + metricList(agent) + "\n<!-- end -->" + after
	if *update {
		require.NoError(t, os.WriteFile(top+reference, []byte(made), 0o644)) //nolint:gosec // a source file
		return
	}
	require.Equal(t, made, string(text), "write the list of metrics anew: go test ./e2e/deploy/monitoring -run MetricsDocumented -update")
}

var update = flag.Bool("update", false, "write the list of metrics anew")

// metricList has a line for each metric of ours, with its labels and its help.
func metricList(agent map[string]metric) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(agent)) {
		m := agent[name]
		if !strings.HasPrefix(name, "meshcni_") || regexp.MustCompile(`_(bucket|sum|count)$`).MatchString(name) {
			continue
		}
		b.WriteString("- `" + name)
		if len(m.labels) > 0 {
			b.WriteString("{" + strings.Join(m.labels, ",") + "}")
		}
		help, _, _ := strings.Cut(strings.ReplaceAll(strings.Trim(m.help, `"`), `\"`, `"`), ". ") // its first sentence
		b.WriteString("`: " + strings.TrimSuffix(help, ".") + "\n")
	}
	return b.String()
}

// labels has the one meaning of each label.
var labels = map[string]string{
	"code": "of readiness", "cni_code": "of a CNI error", "verb": "a CNI command", "http_status": "of a request to the API server", "method": "of a request to the API server",
	"reason": "why", "outcome": "how an attempt ended", "result": "how a comparison or a reload ended", "state": "of what is counted; each is in one", "fill": "likewise, of a table",
	"action": "of repair", "step": "of agent or hand-over", "change": "to a taint", "cause": "what others changed of the installation", "kind": "what was missing in a pod",
	"dialect": "a mesh", "backend": "of rules", "plugin": "another's plugin type", "bypass": "a way past the mesh", "level": "of a record", "request": "on the agent's socket", "object": "with what a token ends",
	"pod_namespace": "of a pod", "pod_name": "of a pod", "program": "of the build", "version": "of the build", "revision": "of the build", "goversion": "of the build", "le": "of a histogram",
}

// TestLabels: each label has one meaning; times are timestamps.
func TestLabels(t *testing.T) {
	used := map[string]bool{"le": true}
	for name, m := range exported(t) {
		assert.NotRegexp(t, `_age_`, name)
		if !strings.HasPrefix(name, "meshcni_") {
			continue
		}
		for _, label := range m.labels {
			assert.Contains(t, labels, label, "of %s", name)
			used[label] = true
		}
	}
	for label := range labels {
		assert.True(t, used[label], "no metric has the label %s", label)
	}
}

func TestScan(t *testing.T) {
	got, err := scan(`histogram_quantile(0.99, sum by (le, node) (rate(a_bucket{x="1", y=~"b|c"}[5m]))) > 5 and on (job) b_total or sum without () (c offset 5m)`)
	require.NoError(t, err)
	assert.Equal(t, []string{"a_bucket", "b_total", "c"}, got.metrics)
	assert.Equal(t, map[string][]matcher{"a_bucket": {{"x", "=", "1"}, {"y", "=~", "b|c"}}}, got.matchers)
	assert.Equal(t, []string{"le", "node", "job"}, got.grouping)
	assert.Equal(t, []string{"b_total"}, got.bare)
	_, err = scan(`vector(0)`)
	assert.Error(t, err)
}
