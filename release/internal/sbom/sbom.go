// Package sbom writes bills of materials, in CycloneDX's JSON: which programs are in an image or an archive, which modules
// are linked into each of them, which of those import which, and their versions, checksums and licences.
package sbom

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/meshcni/meshcni/release/internal/files"
	"github.com/meshcni/meshcni/release/internal/modules"
	"github.com/meshcni/meshcni/release/internal/programs"
	"github.com/meshcni/meshcni/release/internal/source"
)

// Spec is the version of CycloneDX that is written: the newest that the scanners in use read.
const Spec = cdx.SpecVersion1_6

// Subject is what a bill is of.
type Subject struct {
	// Type is an image's or an archive's.
	Type cdx.ComponentType
	// Name is the image's, or the archive's file name.
	Name string
	// Digest is the image's manifest's or the archive's SHA-256, in hex; empty in a bill that is in what it is of.
	Digest string
	// PURL is its package URL; may be empty.
	PURL string
	// Places are the paths of the programs in it, by the programs' names.
	Places map[string]string
}

// Write returns the bill of a subject for a platform. It depends on the arguments alone.
func Write(t source.Tree, at programs.Platform, s Subject, built []programs.Program, linked []modules.Module) (text []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("bill of materials of %s: %w", s.Name, err)
		}
	}()
	subject := cdx.Component{
		BOMRef: "subject", Type: s.Type, Name: s.Name, Version: t.Version, PackageURL: s.PURL, Licenses: licenses(linked, source.Module),
		Properties: &[]cdx.Property{{Name: "platform", Value: at.String()}},
	}
	if s.Digest != "" {
		subject.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: s.Digest}}
	}
	// Programs first, then modules, each sorted by name already.
	var components []cdx.Component
	var dependencies []cdx.Dependency
	var described []cdx.BOMReference
	depends := func(ref string, on []string) {
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &on})
		described = append(described, cdx.BOMReference(ref))
	}
	var all []string
	for _, p := range built {
		sum, err := files.Digest(p.Path)
		if err != nil {
			return nil, err
		}
		ref := "program:" + p.Name
		all = append(all, ref)
		components = append(components, cdx.Component{
			BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: p.Name, Version: t.Version, Scope: cdx.ScopeRequired,
			Licenses:   licenses(linked, source.Module),
			Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}},
			PackageURL: purl(source.Module, t.Version) + "#cmd/" + p.Name,
			Properties: &[]cdx.Property{{Name: "path", Value: s.Places[p.Name]}, {Name: "go:version", Value: p.Info.GoVersion}},
		})
		depends(ref, references(linked, func(m modules.Module) bool { return slices.Contains(m.Programs, p.Name) }))
	}
	for _, m := range linked {
		c := cdx.Component{
			BOMRef: purl(m.Path, m.Version), Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version,
			Scope: cdx.ScopeRequired, Licenses: licenses(linked, m.Path), PackageURL: purl(m.Path, m.Version),
		}
		if m.Path == modules.Std {
			c.CPE = "cpe:2.3:a:golang:go:" + m.Version + ":*:*:*:*:*:*:*"
		}
		if m.Sum != "" {
			// Not among the hashes: it is that of a list of the files' hashes, as go.sum has it, not that of a file.
			c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
		}
		components = append(components, c)
		depends(c.BOMRef, references(linked, func(on modules.Module) bool { return slices.Contains(m.Requires, on.Path) }))
	}
	depends(subject.BOMRef, all)

	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp:  t.Time().Format(time.RFC3339),
		Lifecycles: &[]cdx.Lifecycle{{Phase: cdx.LifecyclePhaseBuild}},
		Tools: &cdx.ToolsChoice{Components: &[]cdx.Component{
			{Type: cdx.ComponentTypeApplication, Name: source.Module + "/release", Version: t.Version},
		}},
		Component: &subject,
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	bom.Compositions = &[]cdx.Composition{{Aggregate: cdx.CompositionAggregateComplete, Dependencies: &described}}
	if text, err = encode(bom); err != nil {
		return nil, err
	}
	// A number of its own for each content, and the same one for the same.
	bom.SerialNumber = "urn:uuid:" + uuid(sha256.Sum256(text))
	return encode(bom)
}

func encode(bom *cdx.BOM) ([]byte, error) {
	var b bytes.Buffer
	e := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false)
	if err := e.EncodeVersion(bom, Spec); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// references are the modules to keep, as a bill's dependencies name them.
func references(linked []modules.Module, keep func(modules.Module) bool) (refs []string) {
	for _, m := range linked {
		if keep(m) {
			refs = append(refs, purl(m.Path, m.Version))
		}
	}
	return refs
}

// licenses are those of a module: one by its identifier, several as an expression, which the format keeps apart.
func licenses(linked []modules.Module, path string) *cdx.Licenses {
	for _, m := range linked {
		switch {
		case m.Path != path:
		case strings.Contains(m.License, " "):
			return &cdx.Licenses{{Expression: m.License}}
		default:
			return &cdx.Licenses{{License: &cdx.License{ID: m.License}}}
		}
	}
	return nil
}

// purl is the package URL of a module.
func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + url.PathEscape(version)
}

// uuid is a hash in the form of a UUID, of version 8, which means anything of one's own.
func uuid(hash [sha256.Size]byte) string {
	b := hash[:16]
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
