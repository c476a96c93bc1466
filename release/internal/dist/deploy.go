package dist

import (
	"fmt"
	"path/filepath"

	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/release/internal/files"
)

// chartDir is the chart, from the root of the sources.
const chartDir = "deploy/helm/meshcni"

// Deploy writes the chart's package, which installs this version's image.
func (r *Release) Deploy() error {
	if err := r.chart(); err != nil {
		return fmt.Errorf("package the chart: %w", err)
	}
	return nil
}

// chart does as `helm package` does with --version and --app-version, except for the time of day.
func (r *Release) chart() error {
	// Helm's own reader, so that a chart which is none is found out here, and .helmignore is followed.
	c, err := loader.LoadDir(filepath.Join(r.tree.Root, filepath.FromSlash(chartDir)))
	if err != nil {
		return err
	}
	c.Metadata.Version, c.Metadata.AppVersion = r.tree.Number(), r.tree.Version
	if err := c.Validate(); err != nil {
		return err
	}
	metadata, err := yaml.Marshal(c.Metadata)
	if err != nil {
		return err
	}
	var tree []files.File
	for _, f := range c.Raw {
		data := f.Data
		if f.Name == "Chart.yaml" {
			data = metadata
		}
		tree = append(tree, files.File{Name: c.Name() + "/" + f.Name, Mode: 0o644, Data: data})
	}
	_, err = r.targz(c.Name()+"-"+r.tree.Number()+".tgz", tree, "chart")
	return err
}
