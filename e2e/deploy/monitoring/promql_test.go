package monitoring_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// query is what a PromQL expression asks for. promtool says whether it is
// valid; this only finds the names in it, so it is a scanner and no parser.
type query struct {
	metrics  []string
	matchers map[string][]matcher // by metric
	grouping []string             // labels of by, without, on, ignoring and group_*
	// bare are counters that are not in a rate, increase or the like.
	bare []string
}

type matcher struct{ label, op, value string }

var (
	token      = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'[^']*'|\[[^\]]*\]|[a-zA-Z_:][a-zA-Z0-9_:]*|[0-9.]+[a-z]*|[!=<>]=|=~|!~|\S`)
	identifier = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	aggregates = []string{"sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile", "stddev", "group"}
	groupings  = []string{"by", "without", "on", "ignoring", "group_left", "group_right"}
	operators  = []string{"and", "or", "unless", "bool", "offset"}
	// overTime are the functions that a counter is for.
	overTime = []string{"rate", "irate", "increase", "resets"}
)

func scan(expr string) (query, error) {
	tokens := token.FindAllString(expr, -1)
	at := func(i int) string {
		if i < len(tokens) {
			return tokens[i]
		}
		return ""
	}
	q := query{matchers: map[string][]matcher{}}
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		switch {
		case !identifier.MatchString(t) || slices.Contains(operators, t):
		case slices.Contains(groupings, t):
			if at(i+1) != "(" {
				continue // group_left without labels
			}
			for i += 2; i < len(tokens) && tokens[i] != ")"; i++ {
				if tokens[i] != "," {
					q.grouping = append(q.grouping, tokens[i])
				}
			}
		case at(i+1) == "(" || slices.Contains(aggregates, t): // a function
		default:
			name, function := t, ""
			if i >= 2 && tokens[i-1] == "(" {
				function = tokens[i-2]
			}
			q.metrics = append(q.metrics, name)
			counter := strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_bucket")
			if counter && !slices.Contains(overTime, function) {
				q.bare = append(q.bare, name)
			}
			if at(i+1) != "{" {
				continue
			}
			for i += 2; i < len(tokens) && tokens[i] != "}"; i++ {
				if tokens[i] == "," {
					continue
				}
				if i+2 >= len(tokens) {
					return q, fmt.Errorf("%q: unfinished matcher", expr)
				}
				q.matchers[name] = append(q.matchers[name], matcher{tokens[i], tokens[i+1], strings.Trim(tokens[i+2], `"'`)})
				i += 2
			}
		}
	}
	if len(q.metrics) == 0 {
		return q, fmt.Errorf("%q asks for no metric", expr)
	}
	return q, nil
}
