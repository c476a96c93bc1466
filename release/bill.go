package main

import (
	"bytes"
	"crypto/sha256"
	"net/url"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// bill returns the bill of materials of a subject, in CycloneDX's JSON: which programs are in it at which paths, which modules are
// linked into each, which of those import which, and their versions, checksums and licences. It depends on the arguments alone.
// 1.6 is the newest version that the scanners in use read.
func (b *built) bill(s source, subject cdx.Component, places map[string]string) ([]byte, error) {
	licences := map[string]*cdx.Licenses{} // one by its identifier, several as an expression: the format keeps them apart
	for _, m := range b.modules {
		if strings.Contains(m.license, " ") {
			licences[m.path] = &cdx.Licenses{{Expression: m.license}}
		} else {
			licences[m.path] = &cdx.Licenses{{License: &cdx.License{ID: m.license}}}
		}
	}
	subject.BOMRef, subject.Version, subject.Licenses = "subject", s.version, licences[ourModule]
	subject.Properties = &[]cdx.Property{{Name: "platform", Value: b.String()}}
	// Programs first, then modules, each sorted by name already.
	var components []cdx.Component
	var dependencies []cdx.Dependency
	var described []cdx.BOMReference
	depends := func(ref string, on []string) {
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &on})
		described = append(described, cdx.BOMReference(ref))
	}
	references := func(keep func(linkedModule) bool) (refs []string) {
		for _, m := range b.modules {
			if keep(m) {
				refs = append(refs, purl(m.path, m.version))
			}
		}
		return refs
	}
	var all []string
	for _, p := range b.programs {
		sum, err := digest(p.path)
		if err != nil {
			return nil, err
		}
		ref := "program:" + p.name
		all = append(all, ref)
		components = append(components, cdx.Component{
			BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: p.name, Version: s.version, Scope: cdx.ScopeRequired, Licenses: licences[ourModule],
			Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}},
			PackageURL: purl(ourModule, s.version) + "#" + sourceOf(p.name),
			Properties: &[]cdx.Property{{Name: "path", Value: places[p.name]}, {Name: "go:version", Value: p.info.GoVersion}},
		})
		depends(ref, references(func(m linkedModule) bool { return slices.Contains(m.programs, p.name) }))
	}
	for _, m := range b.modules {
		c := cdx.Component{
			BOMRef: purl(m.path, m.version), Type: cdx.ComponentTypeLibrary, Name: m.path, Version: m.version,
			Scope: cdx.ScopeRequired, Licenses: licences[m.path], PackageURL: purl(m.path, m.version),
		}
		if m.path == stdlib {
			c.CPE = "cpe:2.3:a:golang:go:" + m.version + ":*:*:*:*:*:*:*"
		}
		if m.sum != "" {
			// Not among the hashes: it is that of a list of the files' hashes, as go.sum has it, not that of a file.
			c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.sum}}
		}
		components = append(components, c)
		depends(c.BOMRef, references(func(on linkedModule) bool { return slices.Contains(m.requires, on.path) }))
	}
	depends(subject.BOMRef, all)

	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp:  s.time.Format(time.RFC3339),
		Lifecycles: &[]cdx.Lifecycle{{Phase: cdx.LifecyclePhaseBuild}},
		Tools:      &cdx.ToolsChoice{Components: &[]cdx.Component{{Type: cdx.ComponentTypeApplication, Name: ourModule + "/release", Version: s.version}}},
		Component:  &subject,
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	bom.Compositions = &[]cdx.Composition{{Aggregate: cdx.CompositionAggregateComplete, Dependencies: &described}}
	encode := func() ([]byte, error) {
		var text bytes.Buffer
		err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(bom, cdx.SpecVersion1_6)
		return text.Bytes(), err
	}
	text, err := encode()
	if err != nil {
		return nil, err
	}
	// A number of its own for each content, and the same one for the same.
	bom.SerialNumber = uuid.NewHash(sha256.New(), uuid.NameSpaceURL, text, 8).URN()
	return encode()
}

// purl is the package URL of a module.
func purl(path, version string) string { return "pkg:golang/" + path + "@" + url.PathEscape(version) }
