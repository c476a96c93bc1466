package doctest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/selection"
)

const troubleshooting = "docs/troubleshooting.md"

// explained are the codes in the first columns of the tables under a heading: all in backticks, before any "{".
func explained(t *testing.T, title string, columns int) []string {
	level, _, _ := strings.Cut(title, " ")
	_, section, ok := strings.Cut(read(t, troubleshooting), "\n"+title+"\n")
	require.True(t, ok, "%s: no section %q", troubleshooting, title)
	section = regexp.MustCompile(`(?m)^#{1,`+string(rune('0'+len(level)))+`} `).Split(section, 2)[0]
	code := regexp.MustCompile("`([^`{]+)(?:\\{[^`]*)?`")
	var all []string
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, cell := range cells[1:min(columns+1, len(cells)-1)] {
			for _, m := range code.FindAllStringSubmatch(cell, -1) {
				all = append(all, m[1])
			}
		}
	}
	return all
}

// inSource are the first groups of what matches in the Go files below some folders.
func inSource(t *testing.T, pattern string, below ...string) []string {
	like := regexp.MustCompile(pattern)
	var all []string
	for _, text := range sources(t, below...) {
		for _, m := range like.FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	require.NotEmpty(t, all, pattern)
	return all
}

func TestReasonsOfDecisions(t *testing.T) {
	var want []string
	for _, r := range append(selection.Reasons, selection.NotKubernetes, selection.AgentPod) {
		want = append(want, string(r))
	}
	assert.ElementsMatch(t, want, explained(t, "### Reasons of the decision", 1))
}

func TestReasonsOfReadiness(t *testing.T) {
	want := inSource(t, `Code\w+ +Code = "([\w-]+)"`, "installer")
	assert.ElementsMatch(t, want, explained(t, "## The node is not ready", 1)[:len(want)])
}

func TestCausesOfDrift(t *testing.T) {
	assert.ElementsMatch(t, inSource(t, `Cause\w+ +Cause = "([\w-]+)"`, "installer"), explained(t, "### What the agent repairs", 1))
}

func TestCodesOfRepair(t *testing.T) {
	got := explained(t, "## Repair", 2)
	var want []string
	for _, r := range repair.Reasons {
		want = append(want, string(r))
	}
	want = append(want, inSource(t, `Outcome\w+ +Outcome = "([\w-]+)"`, "repair")...)
	want = append(want, inSource(t, `\bverified\w+ += "([\w-]+)"`, "repair")...)
	want = append(want, inSource(t, `"(Mesh[A-Z]\w+)"`, "repair")...)
	for _, code := range want {
		assert.Contains(t, got, code, "%s does not explain it", troubleshooting)
	}
	for _, code := range got {
		assert.Contains(t, want, code, "%s explains a code that repair does not give", troubleshooting)
	}
	section, text := "## Repair", read(t, troubleshooting)
	_, text, _ = strings.Cut(text, section)
	for _, held := range inSource(t, `\bheld\w+ += "([\w-]+)"`, "repair") {
		assert.Contains(t, text, "`"+held+"`", "why deleting is held back")
	}
}

// TestMetrics: the table has each metric that is registered, and no other; and whoever else speaks of a metric speaks of one.
func TestMetrics(t *testing.T) {
	registered := inSource(t, `Name: +"(meshcni_\w+)"`, "installer", "repair", "internal/version")
	for _, name := range inSource(t, `\b(?:counter|gauge)\("(\w+)"`, "installer") {
		registered = append(registered, "meshcni_"+name)
	}
	assert.ElementsMatch(t, registered, explained(t, "## Metrics", 1))
	metric := regexp.MustCompile(`\bmeshcni_[a-z_]+[a-z]\b`)
	for _, file := range append(files(t, ".md", documented...), files(t, "", "deploy/monitoring")...) {
		names := metric.FindAllString(read(t, file), -1)
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			assert.True(t, slices.Contains(registered, name) || slices.Contains(registered, base), "%s: there is no metric %s", file, name)
		}
	}
}

// TestBypasses: the ways past the mesh that are reported, each with a series that the agent begins.
func TestBypasses(t *testing.T) {
	var want []string
	metrics := read(t, "installer/metrics.go")
	for _, code := range dialect.BypassCodes {
		want = append(want, string(code))
		assert.Contains(t, metrics, `"`+string(code)+`"`, "a series of meshcni_plugin_bypasses_total that begins at 0")
	}
	assert.ElementsMatch(t, want, inSource(t, `\bBypass\w+ +BypassCode = "([\w-]+)"`, "dialect"))
	assert.ElementsMatch(t, want, explained(t, "### Ways past the mesh", 1))
}

// TestOutcomes: what the records of decisions say.
func TestOutcomes(t *testing.T) {
	text := read(t, troubleshooting)
	for _, outcome := range plugin.Outcomes() {
		assert.Contains(t, text, "`"+string(outcome)+"`", "%s: outcome", troubleshooting)
	}
}
