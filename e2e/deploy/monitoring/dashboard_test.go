package monitoring_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The fields of Grafana's dashboard model (schema version 39) that ours uses.
// Decoding is strict: a field that is misspelt would be ignored by Grafana.
type (
	dashboard struct {
		Title         string     `json:"title"`
		UID           string     `json:"uid"`
		Description   string     `json:"description"`
		Tags          []string   `json:"tags"`
		SchemaVersion int        `json:"schemaVersion"`
		Version       int        `json:"version"`
		Editable      bool       `json:"editable"`
		GraphTooltip  int        `json:"graphTooltip"`
		Refresh       string     `json:"refresh"`
		Timezone      string     `json:"timezone"`
		Time          timeRange  `json:"time"`
		Links         []link     `json:"links"`
		Annotations   noted      `json:"annotations"`
		Templating    templating `json:"templating"`
		Panels        []panel    `json:"panels"`
	}
	timeRange struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	link struct {
		Title       string `json:"title"`
		Type        string `json:"type"`
		URL         string `json:"url"`
		TargetBlank bool   `json:"targetBlank"`
	}
	noted struct {
		List []annotation `json:"list"`
	}
	annotation struct {
		Name        string     `json:"name"`
		Datasource  datasource `json:"datasource"`
		Enable      bool       `json:"enable"`
		Hide        bool       `json:"hide"`
		IconColor   string     `json:"iconColor"`
		Expr        string     `json:"expr"`
		Step        string     `json:"step"`
		TagKeys     string     `json:"tagKeys"`
		TitleFormat string     `json:"titleFormat"`
		TextFormat  string     `json:"textFormat"`
	}
	templating struct {
		List []variable `json:"list"`
	}
	variable struct {
		Name       string          `json:"name"`
		Label      string          `json:"label"`
		Type       string          `json:"type"`
		Datasource *datasource     `json:"datasource"`
		Definition string          `json:"definition"`
		Query      json.RawMessage `json:"query"`
		Refresh    int             `json:"refresh"`
		Sort       int             `json:"sort"`
		Multi      bool            `json:"multi"`
		IncludeAll bool            `json:"includeAll"`
		AllValue   string          `json:"allValue"`
		Current    map[string]any  `json:"current"`
	}
	datasource struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	}
	panel struct {
		ID              int              `json:"id"`
		Type            string           `json:"type"`
		Title           string           `json:"title"`
		Description     string           `json:"description"`
		Collapsed       bool             `json:"collapsed"`
		Panels          []panel          `json:"panels"`
		Datasource      *datasource      `json:"datasource"`
		GridPos         gridPos          `json:"gridPos"`
		Targets         []target         `json:"targets"`
		FieldConfig     fieldConfig      `json:"fieldConfig"`
		Options         map[string]any   `json:"options"`
		Transformations []map[string]any `json:"transformations"`
	}
	gridPos struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	}
	target struct {
		RefID        string     `json:"refId"`
		Datasource   datasource `json:"datasource"`
		EditorMode   string     `json:"editorMode"`
		Expr         string     `json:"expr"`
		LegendFormat string     `json:"legendFormat"`
		Instant      bool       `json:"instant"`
		Range        bool       `json:"range"`
		Format       string     `json:"format"`
	}
	fieldConfig struct {
		Defaults  defaults         `json:"defaults"`
		Overrides []map[string]any `json:"overrides"`
	}
	defaults struct {
		Unit       string           `json:"unit"`
		Min        *float64         `json:"min"`
		Max        *float64         `json:"max"`
		Decimals   *int             `json:"decimals"`
		Color      map[string]any   `json:"color"`
		Custom     map[string]any   `json:"custom"`
		Mappings   []map[string]any `json:"mappings"`
		Thresholds map[string]any   `json:"thresholds"`
	}
)

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("meshcni.json")
	require.NoError(t, err)
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var d dashboard
	require.NoError(t, decoder.Decode(&d))
	return d
}

type dashboardQuery struct{ panel, expr, legend string }

func dashboardQueries(t *testing.T) []dashboardQuery {
	t.Helper()
	var all []dashboardQuery
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all = append(all, dashboardQuery{p.Title, q.Expr, q.LegendFormat})
		}
	}
	for _, a := range d.Annotations.List {
		all = append(all, dashboardQuery{"annotation " + a.Name, a.Expr, a.TitleFormat + a.TextFormat})
	}
	require.NotEmpty(t, all)
	return all
}

func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	ours := datasource{"prometheus", "${datasource}"}
	assert.Equal(t, "meshcni", d.UID)
	assert.Equal(t, 39, d.SchemaVersion)

	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		if v.Type == "query" {
			assert.Equal(t, &ours, v.Datasource, v.Name)
			// Series without the label, where nothing gives them one, must be shown, too.
			assert.Equal(t, ".*", v.AllValue, v.Name)
		}
	}
	assert.Equal(t, []string{"datasource", "cluster", "node"}, names)

	ids, titles, taken := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		assert.False(t, ids[p.ID], "two panels have the id %d", p.ID)
		assert.False(t, titles[p.Title], "two panels are called %q", p.Title)
		ids[p.ID], titles[p.Title] = true, true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			assert.Less(t, x, 24, "%s is out of the grid", p.Title)
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				assert.Empty(t, taken[[2]int{x, y}], "%s lies on another", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		assert.Contains(t, []string{"stat", "timeseries", "table", "heatmap", "state-timeline"}, p.Type, p.Title)
		assert.Regexp(t, `\.$`, p.Description, p.Title)
		assert.Contains(t, []string{"none", "short", "s", "ops", "reqps", "bytes"}, p.FieldConfig.Defaults.Unit, p.Title)
		assert.Equal(t, &ours, p.Datasource, p.Title)
		assert.NotEmpty(t, p.Targets, p.Title)
		refs := map[string]bool{}
		for _, q := range p.Targets {
			assert.False(t, refs[q.RefID], "%s: two queries %s", p.Title, q.RefID)
			refs[q.RefID] = true
			assert.Equal(t, ours, q.Datasource, p.Title)
			assert.NotEqual(t, q.Instant, q.Range, p.Title)
		}
	}
}
