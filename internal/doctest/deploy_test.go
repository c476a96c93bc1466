package doctest

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const chart = "deploy/helm/meshcni"

// TestPlatforms: the table of platforms has each profile of the chart, and no other.
func TestPlatforms(t *testing.T) {
	_, section, ok := strings.Cut(read(t, "docs/install.md"), "\n## Platforms\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	var told, there []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
		told = append(told, m[1])
	}
	for _, file := range files(t, ".yaml", chart+"/profiles") {
		if name := strings.TrimSuffix(path.Base(file), ".yaml"); name != "default" {
			there = append(there, name)
			var profile map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(read(t, file)), &profile))
			row := regexp.MustCompile("(?m)^\\| `" + name + "` \\|.*$").FindString(section)
			for _, dir := range directories(profile["cni"]) {
				assert.Contains(t, row, "`"+dir+"`", "%s: directories of profile %s", "docs/install.md", name)
			}
			if backend, ok := profile["backend"].(string); ok {
				assert.Contains(t, row, "backend `"+backend+"`", "profile %s", name)
			}
		}
	}
	assert.ElementsMatch(t, there, told)
}

// directories are those that a profile sets, but for libcni's cache.
func directories(cni any) []string {
	values, _ := cni.(map[string]any)
	var dirs []string
	if bins, ok := values["binDirs"].([]any); ok {
		for _, b := range bins {
			dirs = append(dirs, b.(string))
		}
	}
	if conf, ok := values["confDir"].(string); ok {
		dirs = append(dirs, conf)
	}
	return dirs
}

// TestValues: a value of the chart that documentation sets, or names with its path, is in values.yaml.
func TestValues(t *testing.T) {
	var values map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(read(t, chart+"/values.yaml")), &values))
	known := map[string]bool{}
	var walk func(prefix string, v any)
	walk = func(prefix string, v any) {
		known[prefix] = true
		if m, ok := v.(map[string]any); ok {
			for key, inner := range m {
				walk(strings.TrimPrefix(prefix+"."+key, "."), inner)
			}
		}
	}
	walk("", values)
	sections := map[string]bool{}
	for key, v := range values {
		if _, ok := v.(map[string]any); ok {
			sections[key] = true
		}
	}
	set := regexp.MustCompile(`--set '?([\w.]+)=`)
	named := regexp.MustCompile("`([a-z][a-zA-Z]*(?:\\.[a-z][a-zA-Z]*)+)(?:: [^`]*|=[^`]*)?`")
	for _, file := range files(t, ".md", "README.md", "docs", "examples") {
		text := read(t, file)
		for _, m := range set.FindAllStringSubmatch(text, -1) {
			assert.True(t, known[m[1]], "%s sets %s, which values.yaml does not have", file, m[1])
		}
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			section, _, _ := strings.Cut(m[1], ".")
			ours := sections[section] && !strings.HasPrefix(m[1], "cni.exclusive") && !strings.HasSuffix(m[1], ".go") && !strings.HasPrefix(m[1], "plugin.")
			assert.True(t, !ours || known[m[1]], "%s names %s, which values.yaml does not have", file, m[1])
		}
	}
}

// TestDefaultsOfValues: the table of the most important values has the defaults of values.yaml.
func TestDefaultsOfValues(t *testing.T) {
	var values, profile map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(read(t, chart+"/values.yaml")), &values))
	require.NoError(t, yaml.Unmarshal([]byte(read(t, chart+"/profiles/default.yaml")), &profile))
	at := func(value any, path string) any {
		for key := range strings.SplitSeq(path, ".") {
			inner, _ := value.(map[string]any)
			value = inner[key]
		}
		return value
	}
	_, table, ok := strings.Cut(read(t, "docs/install.md"), "\n| value | default | |\n|---|---|---|\n")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n\n")
	compared := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		defaults := strings.Split(cells[1], ", ")
		for i, m := range regexp.MustCompile("`([\\w.]+)`").FindAllStringSubmatch(cells[0], -1) {
			if strings.HasPrefix(m[1], "image.") {
				continue // a release sets them
			}
			value := at(values, m[1])
			if value == nil { // it is the profile's
				value = at(profile, m[1])
			}
			told := strings.Trim(defaults[i], "`")
			if told == "none" || told == "empty" {
				told = ""
			}
			assert.Equal(t, told, strings.Trim(fmt.Sprint(value), "\""), m[1])
			compared++
		}
	}
	assert.Greater(t, compared, 10)
}

// TestExamplesNameTheImage: pods of the examples that are made of our image name that which the chart installs, as it is called
// where it was imported. Without a host it would be somebody's at a public registry.
func TestExamplesNameTheImage(t *testing.T) {
	var c struct{ AppVersion string }
	require.NoError(t, yaml.Unmarshal([]byte(read(t, chart+"/Chart.yaml")), &c))
	require.NotEmpty(t, c.AppVersion)
	image := regexp.MustCompile(`\S*meshcni/meshcni:[\w.-]+`)
	found := 0
	for _, file := range append(files(t, ".yaml", "examples"), files(t, ".md", "docs/getting-started.md")...) {
		for _, name := range image.FindAllString(read(t, file), -1) {
			found++
			assert.Equal(t, "localhost/meshcni/meshcni:"+c.AppVersion, strings.TrimLeft(name, "…`"), file)
		}
	}
	assert.NotZero(t, found)
}

// TestCapabilities: the table of capabilities names those that the chart asks for, and no others.
func TestCapabilities(t *testing.T) {
	_, section, ok := strings.Cut(read(t, "docs/security.md"), "\n## Capabilities\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	_, template, ok := strings.Cut(read(t, chart+"/templates/_helpers.tpl"), `define "meshcni.capabilities"`)
	require.True(t, ok)
	template, _, _ = strings.Cut(template, "define ")
	asked := regexp.MustCompile(`"([A-Z]+_[A-Z_]+)"`).FindAllStringSubmatch(template, -1)
	require.NotEmpty(t, asked)
	for _, m := range asked {
		assert.Contains(t, section, "`"+m[1]+"`")
	}
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		for _, m := range regexp.MustCompile("`([A-Z]+_[A-Z_]+)`").FindAllStringSubmatch(line, -1) {
			assert.Contains(t, template, `"`+m[1]+`"`, "docs/security.md")
		}
	}
}

// TestNumbers: what the comparison says of our own times is what was measured.
func TestNumbers(t *testing.T) {
	measured := read(t, "docs/performance.md")
	rows := regexp.MustCompile(`(?m)^\| meshcni, (?:iptables-\w+|nftables) \|(.*)$`).FindAllStringSubmatch(read(t, "docs/comparison.md"), -1)
	require.Len(t, rows, 3)
	for _, row := range rows {
		for _, number := range regexp.MustCompile(`\d+\.\d+(?:–\d+\.\d+)?`).FindAllString(row[1], -1) {
			assert.Contains(t, measured, number, "docs/performance.md, of %s", row[0])
		}
	}
}
