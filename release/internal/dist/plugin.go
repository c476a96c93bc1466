package dist

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"text/template"

	"github.com/meshcni/meshcni/release/internal/programs"
	"github.com/meshcni/meshcni/release/internal/source"
)

// Krew is the name of the manifest by which krew, kubectl's installer of plugins, installs ours. It is the plugin's name there.
const Krew = "meshcni.yaml"

//go:embed krew.yaml.tmpl
var krewText string

var krew = template.Must(template.New(Krew).Option("missingkey=error").Parse(krewText))

// archived is an archive as the manifest names it.
type archived struct {
	programs.Platform
	// Base is the archive's one directory, and its name without ending. Bin is the program in it.
	Base, Bin, Digest string
}

// Plugin writes for each platform an archive of the kubectl plugin, with its bill of materials, and the manifest for krew.
func (r *Release) Plugin(ctx context.Context) error {
	var all []archived
	for _, at := range r.PluginPlatforms {
		p, err := r.build(ctx, at, programs.Plugin)
		if err != nil {
			return fmt.Errorf("plugin for %s: %w", at, err)
		}
		a := archived{Platform: at, Base: programs.Plugin + "_" + r.tree.Number() + "_" + at.OS + "_" + at.Arch, Bin: at.File(programs.Plugin)}
		if a.Digest, err = r.pack(p, a.Base); err != nil {
			return fmt.Errorf("plugin for %s: %w", at, err)
		}
		all = append(all, a)
	}
	var text bytes.Buffer
	if err := krew.Execute(&text, map[string]any{"Home": "https://" + source.Module, "Version": r.tree.Version, "Archives": all}); err != nil {
		return fmt.Errorf("manifest for krew: %w", err)
	}
	return r.write(Krew, text.Bytes(), "manifest for krew")
}
