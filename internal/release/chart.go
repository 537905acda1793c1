package release

import (
	"bytes"
	"regexp"
	"strings"
)

// chartFolder has the Helm chart. It reads the rules and the dashboard from below files, where links lead to them.
const chartFolder = "deploy/chart"

var chartVersion = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// semantic is the version as Helm wants it: v1.2.3 is 1.2.3, and a commit without a tag is 0.0.0-gCOMMIT, since
// a number with a zero before it is no version.
func (s *Source) semantic() string {
	if v, ok := strings.CutPrefix(s.Version, "v"); ok {
		return v
	}

	return "0.0.0-g" + s.Version
}

// chart is the Helm chart as an archive, with the version of the source.
func (s *Source) chart() ([]byte, error) {
	files, err := s.files(chartFolder)
	if err != nil {
		return nil, err
	}

	for i := range files {
		f := &files[i]
		f.name = strings.TrimPrefix(f.name, chartFolder+"/")
		if f.name == "Chart.yaml" {
			f.text = chartVersion.ReplaceAllFunc(f.text, func(line []byte) []byte {
				if bytes.HasPrefix(line, []byte("appVersion")) {
					return []byte("appVersion: " + s.Version)
				}

				return []byte("version: " + s.semantic())
			})
		}
	}

	return s.archive("escrow-relayer", files)
}
