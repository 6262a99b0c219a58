"""Files as people have them: delimiters, quotes, encodings, and what is wrong with some."""

import sys

import pytest

from plausible.tabular.reading import is_missing, listed, read_table


def written(tmp_path, content, name="data.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(("mark", "name"), [(",", "comma"), (";", "semicolon"), ("\t", "tab"), ("|", "bar")])
def test_the_delimiter_is_found_and_said(tmp_path, mark, name):
    table = read_table(written(tmp_path, f"a{mark}b\n1{mark}x\n2{mark}y\n"))
    assert table.columns == {"a": ["1", "2"], "b": ["x", "y"]}
    assert table.layout == f"CSV, {name}-separated (found)"


def test_a_decimal_comma_does_not_hide_the_semicolon(tmp_path):
    table = read_table(written(tmp_path, "a;b;c\n1,5;2,5;x\n3,5;4,5;y\n"))
    assert table.columns == {"a": ["1,5", "3,5"], "b": ["2,5", "4,5"], "c": ["x", "y"]}


@pytest.mark.parametrize("spelling", [";", "semicolon"])
def test_a_delimiter_may_be_given_by_name_or_as_itself(tmp_path, spelling):
    table = read_table(written(tmp_path, "a,b;c\n1,2;3\n"), delimiter=spelling)
    assert table.columns == {"a,b": ["1,2"], "c": ["3"]}


def test_an_unknown_delimiter_is_told_with_the_known(tmp_path):
    with pytest.raises(ValueError, match="delimiter must be auto, comma, semicolon, tab, bar .* got ':'"):
        read_table(written(tmp_path, "a,b\n1,2\n"), delimiter=":")


def test_a_wrong_delimiter_is_told_where_the_target_is_looked_for(tmp_path):
    table = read_table(written(tmp_path, "a,price\n1,2\n"), delimiter=";")
    with pytest.raises(ValueError, match="the whole header is one column, 'a,price': try --delimiter auto"):
        table.column("price")


def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path):
    with pytest.raises(ValueError, match="has no column 'cost'; its columns are 'a', 'price'$"):
        read_table(written(tmp_path, "a,price\n1,2\n")).column("cost")


def test_a_quoted_value_may_hold_newlines_quotes_and_delimiters(tmp_path):
    table = read_table(written(tmp_path, 'a,b\n"two\nlines, ""quoted""",1\nplain,2\n'))
    assert table.columns == {"a": ['two\nlines, "quoted"', "plain"], "b": ["1", "2"]}


def test_spaces_around_values_empty_lines_and_windows_line_ends_do_not_matter(tmp_path):
    table = read_table(written(tmp_path, b"\xef\xbb\xbfa , b\r\n 1, x \r\n\r\n2,y\r\n"))
    assert table.columns == {"a": ["1", "2"], "b": ["x", "y"]}


def test_a_column_without_a_name_is_called_by_its_place(tmp_path):
    assert list(read_table(written(tmp_path, ",a,\n0,1,2\n")).columns) == ["column 1", "a", "column 3"]


@pytest.mark.parametrize("content", ["", "\n\n", "  \n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_said_to_be_empty(tmp_path, content):
    with pytest.raises(ValueError, match="data.csv is empty; it needs a line of column names"):
        read_table(written(tmp_path, content))


def test_a_header_alone_has_no_rows(tmp_path):
    with pytest.raises(ValueError, match="data.csv has column names but no rows"):
        read_table(written(tmp_path, "a,b\n"))


def test_two_columns_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="the column name 'a' occurs 2 times; rename"):
        read_table(written(tmp_path, "a,b,a \n1,2,3\n"))


def test_a_row_of_another_width_is_told_with_its_line(tmp_path):
    with pytest.raises(ValueError, match="data.csv, line 4: 3 values under 2 column names"):
        read_table(written(tmp_path, 'a,b\n"x\ny",2\n1,2,3\n'))


def test_a_quote_left_open_is_told(tmp_path):
    with pytest.raises(ValueError, match="not CSV .* is a quote left open"):
        read_table(written(tmp_path, 'a,b\n"1,2\n3,4\n'))


def test_bytes_that_are_no_utf8_are_told_with_line_and_way_out(tmp_path):
    path = written(tmp_path, "name,x\nAda,1\nZoé,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match="is not utf-8 text: byte 0xe9 in line 3; .* --encoding latin-1"):
        read_table(path)
    assert read_table(path, encoding="latin-1").columns["name"] == ["Ada", "Zoé"]
    with pytest.raises(ValueError, match="encoding must be one that Python knows"):
        read_table(path, encoding="klingon")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file .*nothing.csv"):
        read_table(tmp_path / "nothing.csv")


def test_missing_values_are_a_short_list_in_any_case():
    assert all(map(is_missing, ["", "NA", "na", "NaN", "nan", "null", "NULL", "?", "N/A"]))
    assert not any(map(is_missing, ["0", "none", "-", "unknown", "missing"]))


def test_a_long_list_of_names_is_cut():
    assert listed([f"c{i}" for i in range(14)], most=2) == "'c0', 'c1' and 12 more"


def test_parquet_without_pandas_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match=r"needs pandas: pip install 'plausible\[parquet\]'"):
        read_table(written(tmp_path, b"PAR1", "data.parquet"))


def test_parquet_gives_the_table_that_its_csv_gives(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"n": [1, 2, 3], "x": [0.1, None, 2.5], "c": ["a", "b", None]})
    frame["day"] = pandas.to_datetime(["2024-01-31", "2024-02-01", None])
    frame.to_parquet(tmp_path / "data.parquet")
    columns = read_table(tmp_path / "data.parquet").columns
    assert columns["n"] == ["1", "2", "3"] and columns["x"] == ["0.1", "", "2.5"] and columns["c"] == ["a", "b", ""]
    assert columns["day"] == ["2024-01-31T00:00:00", "2024-02-01T00:00:00", ""]
