package dist

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/release/internal/files"
	"github.com/meshcni/meshcni/release/internal/image"
)

// Where the chart and what is generated from it are, from the root of the sources.
const (
	chartDir     = "deploy/helm/meshcni"
	manifestsDir = "deploy/manifests"
)

// Deploy writes the chart's package and the plain manifests, which install this version's image.
func (r *Release) Deploy() error {
	// Helm's own reader, so that a chart which is none is found out here, and .helmignore is followed.
	c, err := loader.LoadDir(filepath.Join(r.tree.Root, filepath.FromSlash(chartDir)))
	if err != nil {
		return fmt.Errorf("read the chart: %w", err)
	}
	if err := r.manifests(c.Metadata.AppVersion); err != nil {
		return fmt.Errorf("manifests: %w", err)
	}
	if err := r.chart(c); err != nil {
		return fmt.Errorf("package the chart: %w", err)
	}
	return nil
}

// chart does as `helm package` does with --version and --app-version, except for the time of day.
func (r *Release) chart(c *chart.Chart) error {
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

// manifests packs the manifests, which name the version that the chart has in the sources: as released, this one's.
func (r *Release) manifests(chartVersion string) error {
	if chartVersion == "" {
		return errors.New("the chart has no appVersion, which they name")
	}
	tree, err := files.Dir(filepath.Join(r.tree.Root, filepath.FromSlash(manifestsDir)))
	if err != nil {
		return err
	}
	named := regexp.MustCompile(`(` + regexp.QuoteMeta(image.Repository) + `:|app\.kubernetes\.io/version: "?)` + regexp.QuoteMeta(chartVersion) + `\b`)
	for i := range tree {
		f := &tree[i]
		text, err := os.ReadFile(f.Path)
		if err != nil {
			return err
		}
		if !named.Match(text) {
			return fmt.Errorf("%s does not name version %s, which is the chart's: is it made from it?", f.Name, chartVersion)
		}
		f.Path, f.Data = "", named.ReplaceAll(text, []byte("${1}"+r.tree.Version))
	}
	base := r.name("manifests")
	_, err = r.targz(base+".tar.gz", files.Below(base, tree), "plain manifests")
	return err
}
