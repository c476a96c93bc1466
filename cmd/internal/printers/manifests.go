package printers

import (
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/text/visible"
)

// Manifests prints a check of manifests.
type Manifests struct{ output string }

// Describe gives the command its flag.
func (m *Manifests) Describe(cmd *cobra.Command) {
	cmd.Flags().VarP(cli.Choice(&m.output, "text", "json", "github", "junit"), "output", "o", "text, json, github (annotations of GitHub Actions) or junit (XML)")
}

// Print prints as the flag says. Failing are the findings that fail the check, which are those of certain kinds.
func (m *Manifests) Print(w io.Writer, r explain.ManifestReport, failing []explain.Finding, kinds []string) error {
	switch m.output {
	case "json":
		return JSON(w, struct {
			explain.ManifestReport
			Failing []explain.Finding `json:"failing"`
		}{r, append([]explain.Finding{}, failing...)})
	case "github":
		return github(w, r, kinds)
	case "junit":
		return junit(w, r, kinds)
	}
	return manifestsText(w, r, kinds)
}

// each calls f with each finding that somebody wants to see: the failing, and what is wrong with pods of a mesh.
func each(r explain.ManifestReport, kinds []string, f func(_ explain.Finding, fails bool)) {
	for _, one := range r.Failing(explain.FindingKinds...) {
		fails := slices.Contains(kinds, one.Kind) || one.Kind == explain.FindingKinds[0] || one.Kind == explain.FindingKinds[1]
		if fails || one.Kind != "outside" {
			f(one, fails)
		}
	}
}

func manifestsText(w io.Writer, r explain.ManifestReport, kinds []string) error {
	out := visible.To(w)
	each(r, kinds, func(f explain.Finding, fails bool) {
		level := "warning"
		if fails {
			level = "error"
		}
		out.Printf("%s: %s\n", level, f)
		if f.Do != "" {
			out.Printf("    %s\n", f.Do)
		}
	})
	out.Printf("%s\n", summary(r))
	return out.Err()
}

// summary counts in one line.
func summary(r explain.ManifestReport) string {
	named := map[string]int{}
	for _, p := range r.Pods {
		state := string(p.Verdict.State)
		if slices.ContainsFunc(p.Findings, func(f explain.Finding) bool { return f.Kind == explain.FindingKinds[1] }) {
			state = "undecided"
		}
		named[state]++
	}
	text := fmt.Sprintf("%d pods and workloads", len(r.Pods))
	list := func(before string, counts map[string]int) {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			text += fmt.Sprintf("%s%d %s", before, counts[name], name)
			before = ", "
		}
	}
	if len(r.Unreadable) > 0 {
		named["unreadable"] = len(r.Unreadable)
	}
	list(": ", named)
	list("; passed over: ", r.PassedOver)
	return text
}

// github prints workflow commands (GitHub's "Workflow commands for GitHub Actions"), in which a line break or a percent sign is escaped, and
// in properties a colon and a comma too.
func github(w io.Writer, r explain.ManifestReport, kinds []string) error {
	out := visible.To(w)
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	each(r, kinds, func(f explain.Finding, fails bool) {
		level, text := "warning", f.Text
		if fails {
			level = "error"
		}
		if f.Do != "" {
			text += "\n" + f.Do
		}
		out.Printf("::%s file=%s,line=%d,title=%s::%s\n", level, property.Replace(f.File), f.Line, property.Replace(strings.TrimPrefix(f.Object+": "+f.Kind, ": ")), data.Replace(text))
	})
	out.Printf("%s\n", summary(r))
	return out.Err()
}

// The XML of JUnit, as Jenkins' and GitLab's readers take it.
type (
	suites struct {
		XMLName  xml.Name `xml:"testsuites"`
		Name     string   `xml:"name,attr"`
		Tests    int      `xml:"tests,attr"`
		Failures int      `xml:"failures,attr"`
		Suites   []*suite `xml:"testsuite"`
	}
	suite struct {
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Cases    []testcase `xml:"testcase"`
	}
	testcase struct {
		Name    string   `xml:"name,attr"`
		Class   string   `xml:"classname,attr"`
		File    string   `xml:"file,attr"`
		Line    int      `xml:"line,attr"`
		Failure *failure `xml:"failure"`
		Out     string   `xml:"system-out,omitempty"`
	}
	failure struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",chardata"`
	}
)

// junit prints a test suite for each file, in which each pod is a test, and so is what could not be read.
func junit(w io.Writer, r explain.ManifestReport, kinds []string) error {
	all := suites{Name: "manifests"}
	in := map[string]*suite{}
	add := func(file, name string, line int, verdict string, findings []explain.Finding) {
		if in[file] == nil {
			in[file] = &suite{Name: file}
			all.Suites = append(all.Suites, in[file])
		}
		c := testcase{Name: name, Class: file, File: file, Line: line}
		said := []string{verdict}
		each(explain.ManifestReport{Pods: []explain.CheckedPod{{Findings: findings}}}, kinds, func(f explain.Finding, fails bool) {
			text := visible.Line(f.String()) + "\n" + visible.Line(f.Do)
			switch {
			case !fails:
				said = append(said, text)
			case c.Failure == nil:
				c.Failure = &failure{Message: visible.Line(f.Text), Type: f.Kind, Text: text}
			default:
				c.Failure.Text += "\n" + text
			}
		})
		c.Out = strings.TrimSpace(strings.Join(said, "\n"))
		for _, n := range []*int{&all.Tests, &in[file].Tests} {
			*n++
		}
		if c.Failure != nil {
			all.Failures++
			in[file].Failures++
		}
		in[file].Cases = append(in[file].Cases, c)
	}
	for _, f := range r.Unreadable {
		name := f.Object
		if name == "" {
			name = fmt.Sprintf("line %d", f.Line)
		}
		add(f.File, visible.Line(name), f.Line, "", []explain.Finding{f})
	}
	for _, p := range r.Pods {
		add(p.File, visible.Line(p.Object), p.Line, visible.Line(p.Verdict.Sentence), p.Findings)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
